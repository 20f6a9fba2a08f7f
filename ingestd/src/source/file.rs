//! `ingestd import`: a file or standard input, sent to the running daemon over HTTP.
//!
//! The stream of a file is `file:<sha256 of its contents>` (a `.gz` file is read and hashed decompressed); the sequence
//! counts its lines that are not blank. So an import that is run again stores nothing twice. `--stream NAME` names the
//! stream of a file that grows, and of standard input, which is sent without waiting for its end. At a malformed line
//! the import stops with its number; what precedes it is stored.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};
use lanes_core::event::parse_line;
use sha2::{Digest, Sha256};

use super::http::{PRODUCER_HEADER, SEQUENCE_HEADER, Stored};

/// Lines of one request.
const REQUEST_LINES: usize = 1000;

/// Bytes of one request, unless one line alone has more.
const REQUEST_BYTES: usize = 4 << 20;

/// Lines that were read and wait to be sent.
const LINES_AHEAD: usize = 8 * REQUEST_LINES;

/// Why an import stopped. The text is one line.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(String, io::Error),
    /// A line is not an event.
    #[error("{input}, line {line}: {reason}; the {stored} events before it are stored")]
    Line {
        /// What was imported.
        input: String,
        /// The line's number, from 1, blank lines counted.
        line: u64,
        /// What is wrong with it.
        reason: String,
        /// Events that precede it, all durable.
        stored: u64,
    },
    /// Standard input has no contents to be hashed before it is sent.
    #[error("standard input needs a stream name: ingestd import --stream NAME -")]
    StreamName,
    /// The daemon does not answer.
    #[error("the daemon at {0} does not answer ({1}); start it and run the import again, nothing is stored twice")]
    Daemon(String, String),
    /// The daemon refused.
    #[error("the daemon refused events {first} to {last} of stream \"{stream}\": {reason}")]
    Refused {
        /// The stream's name.
        stream: String,
        /// First sequence of the request.
        first: u64,
        /// Last sequence of the request.
        last: u64,
        /// What the daemon said.
        reason: String,
    },
}

/// What an import did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Events that it added to the log.
    pub stored: u64,
    /// Events that were stored before.
    pub duplicates: u64,
}

/// Imports `input`, a path or `-`, into the daemon at `address` (`host:port`), as stream `stream` if it is given.
///
/// # Errors
/// [`ImportError`]; what precedes the fault is stored.
pub fn import(input: &str, stream: Option<&str>, address: &str) -> Result<Imported, ImportError> {
    let read_error = |error| ImportError::Read(input.to_owned(), error);
    if input == "-" {
        let stream = stream.ok_or(ImportError::StreamName)?;
        return send_lines(input, Box::new(io::stdin().lock()), stream, address, &ProgressBar::hidden());
    }
    let path = Path::new(input);
    let (stream, lines) = match stream {
        Some(stream) => (stream.to_owned(), None),
        None => {
            let (hash, lines) = hash_contents(open(path).map_err(read_error)?).map_err(read_error)?;
            (format!("file:{hash}"), Some(lines))
        }
    };
    let progress = progress_bar(lines);
    let result = send_lines(input, open(path).map_err(read_error)?, &stream, address, &progress);
    progress.finish_and_clear();
    result
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let file = BufReader::with_capacity(1 << 16, File::open(path)?);
    if path.extension().is_some_and(|extension| extension == "gz") {
        Ok(Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))))
    } else {
        Ok(Box::new(file))
    }
}

/// The SHA-256 of everything in `contents`, in hexadecimal, and the number of its lines.
fn hash_contents(mut contents: Box<dyn BufRead>) -> io::Result<(String, u64)> {
    let mut hash = Sha256::new();
    let mut lines = 0;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = contents.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        hash.update(&buffer[..length]);
        lines += buffer[..length].iter().filter(|byte| **byte == b'\n').count() as u64;
    }
    let hexadecimal = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((hexadecimal, lines))
}

fn progress_bar(lines: Option<u64>) -> ProgressBar {
    let progress = match lines {
        Some(lines) => ProgressBar::new(lines),
        None => ProgressBar::no_length(),
    };
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} events, {per_sec}, {eta} left") {
        progress.set_style(style);
    }
    progress
}

/// What the reader hands over: a line that is not blank, or the number and reason of one that is not an event.
type LineOrFault = Result<String, (u64, String)>;

/// Sends lines as they come: a request takes what has been read since the last one.
fn send_lines(
    input: &str,
    contents: Box<dyn BufRead + '_>,
    stream: &str,
    address: &str,
    progress: &ProgressBar,
) -> Result<Imported, ImportError> {
    let client = Client::new(stream, address);
    let mut imported = Imported::default();
    let (lines, queue) = mpsc::sync_channel(LINES_AHEAD);
    // The reader waits for standard input; the sender must not, so they are two threads. Standard input is locked by
    // this one, so this one reads.
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let result = send_queue(&client, &queue, &mut imported, progress);
            // The reader may be waiting for room, or for input that nobody needs any more.
            drop(queue);
            result
        });
        read_lines(contents, &lines);
        drop(lines);
        sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
    .and_then(|fault| match fault {
        None => Ok(()),
        Some((line, reason)) => {
            let stored = imported.stored + imported.duplicates;
            Err(ImportError::Line { input: input.to_owned(), line, reason, stored })
        }
    })?;
    Ok(imported)
}

/// Reads until the end, a fault, or until nobody takes the lines any more.
fn read_lines(mut contents: Box<dyn BufRead + '_>, lines: &mpsc::SyncSender<LineOrFault>) {
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        let line = match contents.read_until(b'\n', &mut bytes) {
            Ok(0) => return,
            Ok(_) if bytes.trim_ascii().is_empty() => continue,
            Ok(_) => match std::str::from_utf8(bytes.trim_ascii_end()) {
                Err(error) => Err(format!("is not UTF-8 after byte {}", error.valid_up_to())),
                Ok(text) => parse_line(text, 0).map(|_| text.to_owned()).map_err(|error| error.to_string()),
            },
            Err(error) => Err(format!("cannot be read: {error}")),
        };
        let fault = line.is_err();
        if lines.send(line.map_err(|reason| (number, reason))).is_err() || fault {
            return;
        }
    }
}

/// Sends what is in the queue until its end; returns the fault at which the reader stopped, if it did.
fn send_queue(
    client: &Client,
    queue: &mpsc::Receiver<LineOrFault>,
    imported: &mut Imported,
    progress: &ProgressBar,
) -> Result<Option<(u64, String)>, ImportError> {
    let mut sequence = 1;
    let mut fault = None;
    while fault.is_none() {
        let Ok(first) = queue.recv() else { break };
        let mut body = String::new();
        let mut count = 0;
        let mut next = Some(first);
        while let Some(line) = next.take() {
            match line {
                Err(found) => fault = Some(found),
                Ok(text) => {
                    body.push_str(&text);
                    body.push('\n');
                    count += 1;
                    if count < REQUEST_LINES && body.len() < REQUEST_BYTES {
                        next = queue.try_recv().ok();
                    }
                }
            }
        }
        if count > 0 {
            let stored = client.send(sequence, count as u64, body)?;
            imported.stored += stored.stored;
            imported.duplicates += stored.duplicates;
            sequence += count as u64;
            progress.inc(count as u64);
        }
    }
    Ok(fault)
}

/// A producer of one stream.
struct Client {
    agent: ureq::Agent,
    stream: String,
    address: String,
}

impl Client {
    fn new(stream: &str, address: &str) -> Client {
        // The daemon is this machine's or is named; a proxy of the environment is for the world outside.
        let agent = ureq::Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(10)))
            .build()
            .new_agent();
        Client { agent, stream: stream.to_owned(), address: address.to_owned() }
    }

    fn send(&self, first: u64, count: u64, body: String) -> Result<Stored, ImportError> {
        let no_answer = |error: ureq::Error| ImportError::Daemon(self.address.clone(), error.to_string());
        let mut response = self
            .agent
            .post(format!("http://{}/v1/events", self.address))
            .header(PRODUCER_HEADER, &self.stream)
            .header(SEQUENCE_HEADER, first.to_string())
            .content_type("application/x-ndjson")
            .send(body)
            .map_err(no_answer)?;
        let ok = response.status().is_success();
        let text = response.body_mut().read_to_string().map_err(no_answer)?;
        let refused = |reason: String| ImportError::Refused {
            stream: self.stream.clone(),
            first,
            last: first + count - 1,
            reason,
        };
        if ok {
            return serde_json::from_str(&text).map_err(|error| refused(format!("unexpected answer: {error}")));
        }
        let reason = serde_json::from_str::<serde_json::Value>(&text)
            .ok()
            .and_then(|body| body["error"].as_str().map(str::to_owned))
            .unwrap_or(text);
        Err(refused(reason))
    }
}
