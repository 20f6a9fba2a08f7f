//! The command line: `run`, `import`, `apply`, `dead-letters`, `status`.
//!
//! Exit codes: 0 done; 1 it could not be done, with one line on standard error; 2 the command line is not understood;
//! 70 a fault of the program.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{ConfigError, LOG_VARIABLE, Sources};
use crate::{admin, daemon, log, projection, source};

/// A durable log beside Postgres that keeps projections up to date.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// The settings file, see docs/SETTINGS.md. Default: ingestd.toml, if there is one.
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    /// A setting, over the file and the environment. May be given several times.
    #[arg(long = "set", global = true, value_name = "NAME=VALUE")]
    settings: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon until SIGTERM.
    Run {
        /// Go on although the log has lost what it had stored, as the refused start has named it. What is lost is told in
        /// the log by a row of type ingestd.loss. A damaged file is renamed, not deleted.
        #[arg(long)]
        accept_loss: bool,
    },
    /// Send a file of events, one JSON object a line, to the running daemon. Run again it stores nothing twice.
    Import {
        /// The file, `.gz` or not, or - for standard input.
        file: String,
        /// Name of the stream, for a file that grows and for standard input. Without it the file's contents are its
        /// name.
        #[arg(long)]
        stream: Option<String>,
    },
    /// Define the projections of a YAML file in Postgres, and create their tables.
    Apply {
        /// The file.
        file: PathBuf,
        /// Show what would be done, with the statements, and do nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// The events that could not be applied, and those that wait behind them.
    DeadLetters {
        #[command(subcommand)]
        action: admin::dead_letters::Action,
    },
    /// Check directory, disk, descriptors, SQLite, Postgres and extension, without changing anything.
    Check,
    /// Let go of a projection: its definition and checkpoints are deleted, so that the log need not keep events for it.
    /// Its table stays.
    Forget {
        /// The projection's name.
        projection: String,
    },
    /// Look at the log's files.
    Log {
        #[command(subcommand)]
        command: LogCommand,
    },
    /// Show how far the log and the lanes of the running daemon are.
    Status {
        /// Print the daemon's answer as it is.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Check that everything that was stored is there, once and unchanged, whether a daemon is running on it or not.
    Verify,
}

/// Runs what the command line says.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env(LOG_VARIABLE)
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .init();
    match perform(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ingestd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn perform(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let sources = Sources {
        file: arguments.config.clone().unwrap_or_else(|| PathBuf::from("ingestd.toml")),
        file_was_named: arguments.config.is_some(),
        flags: arguments.settings.clone(),
    };
    let path: &Path = &sources.file;
    let config = sources.read()?;
    match &arguments.command {
        Command::Run { accept_loss } => daemon::run(config, &sources, *accept_loss)?,
        Command::Import { file, stream } => {
            let imported = source::file::import(file, stream.as_deref(), &config.listen.to_string())?;
            println!("{} events stored, {} were already stored", imported.stored, imported.duplicates);
        }
        Command::Apply { file, dry_run } => {
            for line in projection::apply::apply(file, &config, path, *dry_run)? {
                println!("{line}");
            }
        }
        Command::DeadLetters { action } => {
            let postgres =
                config.postgres.as_deref().ok_or_else(|| ConfigError::Absent(path.to_owned(), "postgres"))?;
            print!("{}", admin::dead_letters::perform(action, &daemon::postgres_config(postgres)?)?);
        }
        Command::Check => {
            let (report, good) = admin::check::check(&config, path)?;
            print!("{report}");
            if !good {
                return Err("something is not as it must be, see above".into());
            }
        }
        Command::Forget { projection } => {
            projection::forget::forget(projection, &config, path)?;
            println!("projection {projection} is forgotten; its table stays");
        }
        Command::Log { command: LogCommand::Verify } => {
            let verification = log::verify::verify(&config.log_settings(path)?.data_directory)?;
            print!("{verification}");
            if verification.fault_count > 0 {
                return Err(format!("the log has {} faults", verification.fault_count).into());
            }
        }
        Command::Status { json } => {
            let answer = admin::status::fetch(&config.listen.to_string())?;
            if *json {
                println!("{answer}");
            } else {
                print!("{}", admin::status::describe(&answer)?);
            }
        }
    }
    Ok(())
}
