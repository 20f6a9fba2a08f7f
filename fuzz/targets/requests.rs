//! Requests to `POST /v1/events`, sent to the daemon's own router before a real log.
//!
//! Input: lines `name: value` of headers, a blank line, the body. What is stored is as many events as the body has lines,
//! or elements of its array, counted here by other means; a numbered request that is sent again is all duplicates; and what
//! is refused has stored nothing.

#![no_main]

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderName, HeaderValue, Request, StatusCode};
use ingestd::log::writer::CommitLimits;
use ingestd::log::{Log, LogSettings, open};
use ingestd::source::http::{RequestLimits, router};
use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tower::ServiceExt;

const LIMITS: RequestLimits = RequestLimits { event_bytes: 2_000, request_bytes: 20_000, in_flight_bytes: 40_000 };

/// Requests after which a log is replaced, so that it stays small.
const REQUESTS: usize = 5_000;

struct Server {
    runtime: Runtime,
    log: Option<Arc<Log>>,
    router: Option<Router>,
    requests: usize,
    _directory: TempDir,
}

impl Server {
    fn start() -> Server {
        let directory = tempfile::tempdir().expect("temporary files can be written");
        let settings = LogSettings {
            data_directory: directory.path().to_owned(),
            drain_threads: 1,
            storage_shards: 1,
            limits: CommitLimits {
                events: 10_000,
                latency: Duration::from_millis(100),
                disk_reserve_bytes: 0,
                checkpoint_pages: 1_000,
            },
            max_streams: 1_000_000,
            accept_loss: false,
        };
        let log = Arc::new(open(&settings).expect("the directory is empty"));
        let router = router(Arc::clone(&log), LIMITS, Box::new(|| unreachable!("nobody asks for the status")));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("threads");
        Server { runtime, log: Some(log), router: Some(router), requests: 0, _directory: directory }
    }

    fn horizon(&self) -> u64 {
        self.log.as_ref().expect("it is open").horizon().position()
    }

    fn post(&self, headers: &[(HeaderName, HeaderValue)], body: &[u8]) -> (StatusCode, Value) {
        let mut request = Request::post("/v1/events").body(Body::from(body.to_vec())).expect("a request");
        for (name, value) in headers {
            request.headers_mut().append(name, value.clone());
        }
        let router = self.router.clone().expect("it is open");
        self.runtime.block_on(async {
            let answer = router.oneshot(request).await.expect("it never fails");
            let status = answer.status();
            let body = to_bytes(answer.into_body(), usize::MAX).await.expect("the body is in memory");
            (status, serde_json::from_slice(&body).expect("answers are JSON"))
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.router.take());
        let log = self.log.take().and_then(Arc::into_inner).expect("nobody else has it");
        log.close().expect("it closes in order");
    }
}

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

fuzz_target!(|input: &[u8]| {
    let (head, body) = pg_lanes_fuzz::split(input, b"\n\n");
    let headers: Vec<(HeaderName, HeaderValue)> = (head.split(|byte| *byte == b'\n'))
        .filter_map(|line| {
            let (name, value) = pg_lanes_fuzz::split(line, b": ");
            Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
        })
        .collect();
    SERVER.with_borrow_mut(|place| {
        if place.as_ref().is_some_and(|server| server.requests == REQUESTS) {
            *place = None;
        }
        let server = place.get_or_insert_with(Server::start);
        server.requests += 1;
        let before = server.horizon();
        let (status, answer) = server.post(&headers, body);
        let stored = server.horizon() - before;
        if status != StatusCode::OK {
            assert!(status.is_client_error(), "{status}: {answer}");
            assert_eq!(stored, 0, "{status}: {answer}");
            assert!(answer["error"].is_string(), "{answer}");
            return;
        }
        let events = count(body);
        assert_eq!(answer["stored"], stored);
        assert_eq!(stored + answer["duplicates"].as_u64().expect("a number"), events);
        if headers.iter().any(|(name, _)| name == "ingest-producer") {
            let (status, answer) = server.post(&headers, body);
            assert_eq!(status, StatusCode::OK, "{answer}");
            assert_eq!((&answer["stored"], &answer["duplicates"]), (&Value::from(0), &Value::from(events)));
        }
    });
});

/// How many events an accepted body has.
fn count(body: &[u8]) -> u64 {
    let text = std::str::from_utf8(body).expect("what is not UTF-8 is refused");
    if text.trim_ascii_start().starts_with('[') {
        return serde_json::from_str::<Vec<IgnoredAny>>(text).expect("it was accepted").len() as u64;
    }
    text.split('\n').filter(|line| !line.trim_ascii().is_empty()).count() as u64
}
