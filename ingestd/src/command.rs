//! The command line: `run`, `import`, `apply`, `dead-letters`, `status`.
//!
//! Exit codes: 0 done; 1 it could not be done, with one line on standard error; 2 the command line is not understood;
//! 70 a fault of the program.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{Config, ConfigError};
use crate::{admin, daemon, projection, source};

/// A durable log beside Postgres that keeps projections up to date.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// The settings file, see docs/SETTINGS.md.
    #[arg(long, global = true, default_value = "ingestd.toml")]
    config: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon until SIGTERM.
    Run,
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
    /// Show how far the log and the lanes of the running daemon are.
    Status {
        /// Print the daemon's answer as it is.
        #[arg(long)]
        json: bool,
    },
}

/// Runs what the command line says.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("INGESTD_LOG")
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
    let path: &Path = &arguments.config;
    let config = Config::read(path)?;
    match &arguments.command {
        Command::Run => daemon::run(&config, path)?,
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
