//! The advisory lock of a lane: held by the session that owns the lane (LANE-1 rests on row lock and epoch; this lock
//! decides who tries, and shows who is alive).
//!
//! Session locks do not follow transactions, but a claim must: one that is rolled back gives its lock back, a release
//! that is rolled back keeps it. So each change is noted with the (sub)transaction that made it, and settled when that
//! one ends. Callbacks run while a transaction ends, where an error would take the server down: they only release
//! locks, which raises nothing.

use std::cell::RefCell;
use std::ffi::c_void;

use lanes_core::lane;
use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, LOCKTAG, SubTransactionId, SubXactEvent, XactEvent};
use pgrx::{PgLogLevel, pg_extern, pg_guard};

use crate::encoding::Text;
use crate::error::{cannot_prepare, lane_error};

/// What a transaction changed, and so what its end has to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// The lock was taken: released if the transaction is rolled back.
    Taken,
    /// The lock was given up: released if the transaction commits.
    GivenUp,
}

/// One change of a lane's lock in the running transaction.
#[derive(Clone, Copy)]
struct Note {
    key: i64,
    change: Change,
    /// The subtransaction that answers for the change: the one that made it, or the one it was committed into.
    subtransaction: SubTransactionId,
}

thread_local! {
    /// The changes of the running transaction, oldest first.
    static NOTES: RefCell<Vec<Note>> = const { RefCell::new(Vec::new()) };
}

#[pg_extern(sql = false)]
fn lock_key(projection: Text<'_>, lane: i32) -> Result<i64, ErrorReport> {
    lane::lock_key(&projection.as_str(), lane).map_err(|error| lane_error(&error))
}

/// Takes the lane's lock for this session. False if another session holds it, or this one already does.
#[pg_extern(sql = false)]
fn take_lane_lock(projection: Text<'_>, lane: i32) -> Result<bool, ErrorReport> {
    let key = lock_key(projection, lane)?;
    // Asked first: Postgres counts a session's locks, and a lane taken twice would need two releases.
    if is_held(key) {
        return Ok(false);
    }
    let tag = tag_of(key);
    // SAFETY: a complete tag; with dontWait it answers at once. A session lock needs no resource owner.
    let result = unsafe { pg_sys::LockAcquire(&tag, pg_sys::ExclusiveLock as i32, true, true) };
    if result == pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL {
        return Ok(false);
    }
    note(key, Change::Taken);
    Ok(true)
}

/// Gives the lane's lock up when the transaction commits. False if this session does not hold it.
#[pg_extern(sql = false)]
fn give_up_lane_lock(projection: Text<'_>, lane: i32) -> Result<bool, ErrorReport> {
    let key = lock_key(projection, lane)?;
    let held = is_held(key);
    if held {
        note(key, Change::GivenUp);
    }
    Ok(held)
}

/// When this session began: tells it from an earlier one with the same process id. (`pg_stat_activity` hides it from a
/// role that is not the one that logged in.)
#[pg_extern(sql = false)]
fn session_started_at() -> TimestampWithTimeZone {
    // SAFETY: set when the session began and never changed.
    TimestampWithTimeZone::try_from(unsafe { pg_sys::MyStartTimestamp }).expect("the server's own clock is in range")
}

/// The tag under which `pg_advisory_lock(key)` locks, so that SQL and other clients see the same lock.
fn tag_of(key: i64) -> LOCKTAG {
    LOCKTAG {
        // SAFETY: set when the session connected to its database and never changed.
        locktag_field1: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        locktag_field2: (key as u64 >> 32) as u32,
        locktag_field3: key as u32,
        // 1 says "one bigint key"; two int keys would be 2.
        locktag_field4: 1,
        locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
        locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
    }
}

fn is_held(key: i64) -> bool {
    let tag = tag_of(key);
    // SAFETY: reads this session's own table of locks.
    unsafe {
        #[cfg(any(feature = "pg15", feature = "pg16"))]
        return pg_sys::LockHeldByMe(&tag, pg_sys::ExclusiveLock as i32);
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        return pg_sys::LockHeldByMe(&tag, pg_sys::ExclusiveLock as i32, false);
    }
}

fn release(key: i64) {
    let tag = tag_of(key);
    // SAFETY: a complete tag. At worst Postgres warns that the lock is not held.
    unsafe { pg_sys::LockRelease(&tag, pg_sys::ExclusiveLock as i32, true) };
}

fn note(key: i64, change: Change) {
    register_callbacks();
    // SAFETY: SQL functions run inside a transaction.
    let subtransaction = unsafe { pg_sys::GetCurrentSubTransactionId() };
    NOTES.with_borrow_mut(|notes| notes.push(Note { key, change, subtransaction }));
}

/// Registers the callbacks once in the life of the session.
fn register_callbacks() {
    thread_local! {
        static REGISTERED: RefCell<bool> = const { RefCell::new(false) };
    }
    if REGISTERED.replace(true) {
        return;
    }
    // SAFETY: both are functions of this library, which Postgres never unloads.
    unsafe {
        pg_sys::RegisterXactCallback(Some(at_end_of_transaction), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(at_end_of_subtransaction), std::ptr::null_mut());
    }
}

#[pg_guard]
extern "C-unwind" fn at_end_of_transaction(event: XactEvent::Type, _argument: *mut c_void) {
    let outcome = match event {
        XactEvent::XACT_EVENT_COMMIT => Change::GivenUp,
        XactEvent::XACT_EVENT_ABORT => Change::Taken,
        XactEvent::XACT_EVENT_PRE_PREPARE if NOTES.with_borrow(|notes| !notes.is_empty()) => {
            // Still an ordinary place for an error: the transaction is rolled back.
            return cannot_prepare().report(PgLogLevel::ERROR);
        }
        _ => return,
    };
    for note in NOTES.take() {
        if note.change == outcome {
            release(note.key);
        }
    }
}

#[pg_guard]
extern "C-unwind" fn at_end_of_subtransaction(
    event: SubXactEvent::Type,
    subtransaction: SubTransactionId,
    parent: SubTransactionId,
    _argument: *mut c_void,
) {
    match event {
        SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => NOTES.with_borrow_mut(|notes| {
            for note in notes.iter_mut().filter(|note| note.subtransaction == subtransaction) {
                note.subtransaction = parent;
            }
        }),
        SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
            let undone: Vec<Note> = NOTES
                .with_borrow_mut(|notes| notes.extract_if(.., |note| note.subtransaction == subtransaction).collect());
            for note in undone.iter().filter(|note| note.change == Change::Taken) {
                release(note.key);
            }
        }
        _ => {}
    }
}
