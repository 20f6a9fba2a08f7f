//! `ingestd import`: a file or standard input, sent to the running daemon over HTTP.
//!
//! The stream of a file is `file:<sha256 of its contents>` (a `.gz` file is read and hashed decompressed); the sequence
//! counts its lines that are not blank. So an import that is run again stores nothing twice. `--stream NAME` names the
//! stream of a file that grows, and of standard input, which is sent without waiting for its end. At a malformed line
//! the import stops with its number; what precedes it is stored.
//!
//! With a named stream each request carries the SHA-256 of all lines up to its end, each with one line feed. Requests
//! end at every 1 000th line and where the stored part of the stream ends, so that the daemon, which keeps the hashes of
//! these, tells a file that was changed in a line that is stored, and in which thousand.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};
use lanes_core::event::parse_line;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::http::{HASH_HEADER, PRODUCER_HEADER, SEQUENCE_HEADER, Stored};
use crate::log::stream_hash::HASH_INTERVAL;

/// Lines of one request; of a named stream less, if it would not end where a hash is kept.
const REQUEST_LINES: u64 = HASH_INTERVAL;

/// Bytes of one request, unless one line alone has more.
const REQUEST_BYTES: usize = 4 << 20;

/// Lines that were read and wait to be sent.
const LINES_AHEAD: usize = 8 * REQUEST_LINES as usize;

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
    /// The lines that are stored already are not those of this input.
    #[error(
        "{input} is not what stream \"{stream}\" was made of: lines {first_line} to {last_line} differ from what is stored \
         (events {first} to {last}); nothing of them was stored. Give a changed file another --stream name"
    )]
    Differs {
        /// What was imported.
        input: String,
        /// The stream's name.
        stream: String,
        /// The first line of the thousand, blank lines counted.
        first_line: u64,
        /// Its last line.
        last_line: u64,
        /// Sequence of the first line.
        first: u64,
        /// Sequence of the last line.
        last: u64,
    },
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
        let client = Client::named(input, stream.ok_or(ImportError::StreamName)?, address)?;
        return send_lines(client, Box::new(io::stdin().lock()), &ProgressBar::hidden());
    }
    let path = Path::new(input);
    let (client, lines) = match stream {
        Some(stream) => (Client::named(input, stream, address)?, None),
        None => {
            let (hash, lines) = hash_contents(open(path).map_err(read_error)?).map_err(read_error)?;
            (Client::new(input, &format!("file:{hash}"), address), Some(lines))
        }
    };
    let progress = progress_bar(lines);
    let result = send_lines(client, open(path).map_err(read_error)?, &progress);
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
    Ok((hexadecimal(hash), lines))
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
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

/// What the reader hands over: the number of a line that is not blank, and its text, or what is wrong with it.
type Line = (u64, Result<String, String>);

/// Sends lines as they come: a request takes what has been read since the last one.
fn send_lines(
    mut client: Client,
    contents: Box<dyn BufRead + '_>,
    progress: &ProgressBar,
) -> Result<Imported, ImportError> {
    let mut imported = Imported::default();
    let (lines, queue) = mpsc::sync_channel(LINES_AHEAD);
    // The reader waits for standard input; the sender must not, so they are two threads. Standard input is locked by
    // this one, so this one reads.
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let result = send_queue(&mut client, &queue, &mut imported, progress);
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
            Err(ImportError::Line { input: client.input.clone(), line, reason, stored })
        }
    })?;
    Ok(imported)
}

/// Reads until the end, a fault, or until nobody takes the lines any more.
fn read_lines(mut contents: Box<dyn BufRead + '_>, lines: &mpsc::SyncSender<Line>) {
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
        if lines.send((number, line)).is_err() || fault {
            return;
        }
    }
}

/// Sends what is in the queue until its end; returns the line at which the reader stopped, and why, if it did.
fn send_queue(
    client: &mut Client,
    queue: &mpsc::Receiver<Line>,
    imported: &mut Imported,
    progress: &ProgressBar,
) -> Result<Option<(u64, String)>, ImportError> {
    let mut fault = None;
    while fault.is_none() {
        let Ok(first) = queue.recv() else { break };
        let most = client.lines_of_next_request();
        let mut body = String::new();
        let mut count = 0;
        let mut next = Some(first);
        while let Some((number, line)) = next.take() {
            match line {
                Err(reason) => fault = Some((number, reason)),
                Ok(text) => {
                    client.take_in(client.next_sequence + count, number, &text);
                    body.push_str(&text);
                    body.push('\n');
                    count += 1;
                    if count < most && body.len() < REQUEST_BYTES {
                        next = queue.try_recv().ok();
                    }
                }
            }
        }
        if count > 0 {
            let stored = client.send(count, body)?;
            imported.stored += stored.stored;
            imported.duplicates += stored.duplicates;
            progress.inc(count);
        }
    }
    Ok(fault)
}

/// A producer of one stream.
struct Client {
    agent: ureq::Agent,
    input: String,
    stream: String,
    address: String,
    /// The sequence of the next line.
    next_sequence: u64,
    /// For a stream that is named, and so may be given another file.
    hashing: Option<Hashing>,
}

/// What tells a file that was changed.
struct Hashing {
    /// Of all lines up to here.
    hash: Sha256,
    /// The last sequence that was stored before this import.
    stored: u64,
    /// Line numbers of the present thousand: its first one and the last one read.
    lines: (u64, u64),
}

impl Client {
    /// A producer whose name stands for its contents.
    fn new(input: &str, stream: &str, address: &str) -> Client {
        // The daemon is this machine's or is named; a proxy of the environment is for the world outside.
        let agent = ureq::Agent::config_builder()
            .proxy(None)
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(10)))
            .build()
            .new_agent();
        let (input, stream, address) = (input.to_owned(), stream.to_owned(), address.to_owned());
        Client { agent, input, stream, address, next_sequence: 1, hashing: None }
    }

    /// A producer whose contents may be others than they were.
    fn named(input: &str, stream: &str, address: &str) -> Result<Client, ImportError> {
        let client = Client::new(input, stream, address);
        let name: String = stream.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let asked = client.agent.get(format!("http://{address}/v1/producers/{name}")).call();
        let state: Value = client.answer(asked)?.map_err(|refusal| client.refused(1, 1, &refusal))?;
        let next = state["next_sequence"].as_u64().unwrap_or(1);
        let hashing = Hashing { hash: Sha256::new(), stored: next.saturating_sub(1), lines: (0, 0) };
        Ok(Client { hashing: Some(hashing), ..client })
    }

    /// The most lines of the next request: it must not go over a number at which a hash is kept.
    fn lines_of_next_request(&self) -> u64 {
        let Some(hashing) = &self.hashing else { return REQUEST_LINES };
        let sent = self.next_sequence - 1;
        let to_interval = HASH_INTERVAL - sent % HASH_INTERVAL;
        match hashing.stored.checked_sub(sent) {
            None | Some(0) => to_interval,
            Some(to_stored) => to_interval.min(to_stored),
        }
    }

    /// Hashes a line that is about to be sent.
    fn take_in(&mut self, sequence: u64, line: u64, text: &str) {
        if let Some(hashing) = &mut self.hashing {
            hashing.hash.update(text);
            hashing.hash.update("\n");
            if sequence % HASH_INTERVAL == 1 {
                hashing.lines.0 = line;
            }
            hashing.lines.1 = line;
        }
    }

    /// Sends the next `count` lines.
    fn send(&mut self, count: u64, body: String) -> Result<Stored, ImportError> {
        let first = self.next_sequence;
        let last = first + count - 1;
        self.next_sequence += count;
        let mut request = self
            .agent
            .post(format!("http://{}/v1/events", self.address))
            .header(PRODUCER_HEADER, &self.stream)
            .header(SEQUENCE_HEADER, first.to_string())
            .content_type("application/x-ndjson");
        if let Some(hashing) = &self.hashing {
            request = request.header(HASH_HEADER, hexadecimal(hashing.hash.clone()));
        }
        let refusal = match self.answer(request.send(body))? {
            Ok(answer) => {
                return serde_json::from_value(answer)
                    .map_err(|error| self.refused(first, last, &json!(format!("unexpected answer: {error}"))));
            }
            Err(refusal) => refusal,
        };
        match &self.hashing {
            Some(Hashing { lines: (first_line, last_line), .. }) if refusal["differs_at"].is_u64() => {
                Err(ImportError::Differs {
                    input: self.input.clone(),
                    stream: self.stream.clone(),
                    first_line: *first_line,
                    last_line: *last_line,
                    first: last - (last - 1) % HASH_INTERVAL,
                    last,
                })
            }
            _ => Err(self.refused(first, last, &refusal)),
        }
    }

    /// The body of an answer, or of a refusal.
    fn answer(
        &self,
        sent: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Result<Value, Value>, ImportError> {
        let no_answer = |error: ureq::Error| ImportError::Daemon(self.address.clone(), error.to_string());
        let mut response = sent.map_err(no_answer)?;
        let text = response.body_mut().read_to_string().map_err(no_answer)?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(if response.status().is_success() { Ok(body) } else { Err(body) })
    }

    fn refused(&self, first: u64, last: u64, body: &Value) -> ImportError {
        let reason = body["error"].as_str().or(body.as_str()).map_or_else(|| body.to_string(), str::to_owned);
        ImportError::Refused { stream: self.stream.clone(), first, last, reason }
    }
}
