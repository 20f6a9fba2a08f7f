//! Times: read from RFC 3339 text or from a number since 1970, kept in microseconds since 1970 UTC, as Postgres's
//! `timestamptz` does.
//!
//! Invariants: what is finer than a microsecond is rounded half to even, as Postgres rounds it. The calendar is the
//! Gregorian one for all years, as in Postgres.

use std::str::FromStr;

use bigdecimal::BigDecimal;
use bigdecimal::rounding::RoundingMode;

use super::number::Number;

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

/// The first moment of Postgres's `timestamptz` (4714-11-24 BC) in microseconds since 1970.
const FIRST: i64 = -210_866_803_200_000_000;

/// The days from 0000-03-01 to 1970-01-01, between which no leap day is missing.
const DAYS_TO_1970: i64 = 719_468;

const NOT_A_TIME: &str = "is not a time (RFC 3339 with its zone, or a number of milliseconds since 1970)";
const NOT_A_DATE: &str = "is not a date (YYYY-MM-DD, or a number of milliseconds since 1970)";
const OUT_OF_RANGE: &str = "is out of range for type timestamp with time zone";

/// Reads RFC 3339 text, or a number of milliseconds since 1970, as microseconds since 1970.
///
/// # Errors
/// The reason as a clause that follows the value.
pub fn parse_time(text: &str) -> Result<i64, &'static str> {
    match Number::parse(text) {
        Ok(number) => from_number(&number, 1000),
        Err(_) => parse_rfc3339(text.trim_ascii()).ok_or(NOT_A_TIME),
    }
}

/// Reads `YYYY-MM-DD`, or a number of milliseconds since 1970, as days since 1970.
///
/// # Errors
/// The reason as a clause that follows the value.
pub fn parse_date(text: &str) -> Result<i32, &'static str> {
    match Number::parse(text) {
        Ok(number) => Ok(date_of(from_number(&number, 1000)?)),
        Err(_) => {
            let mut digits = Cursor(text.trim_ascii().as_bytes());
            let days = digits.date().ok_or(NOT_A_DATE)?;
            if digits.0.is_empty() { i32::try_from(days).map_err(|_| NOT_A_DATE) } else { Err(NOT_A_DATE) }
        }
    }
}

/// A number of units since 1970, each of `microseconds`, as microseconds.
///
/// # Errors
/// The reason as a clause that follows the value.
pub fn from_number(number: &Number, microseconds: i64) -> Result<i64, &'static str> {
    let exact = match number {
        Number::Integer(integer) => integer.checked_mul(microseconds.into()).and_then(|time| i64::try_from(time).ok()),
        Number::Decimal(decimal) => {
            // Before anything is multiplied out: 1e100000 is no time.
            if decimal.abs() > i64::MAX {
                return Err(OUT_OF_RANGE);
            }
            let rounded = (decimal * BigDecimal::from(microseconds)).with_scale_round(0, RoundingMode::HalfEven);
            i64::from_str(&rounded.to_plain_string()).ok()
        }
    };
    exact.filter(|time| *time >= FIRST).ok_or(OUT_OF_RANGE)
}

/// The day, in UTC, of a time.
pub fn date_of(time: i64) -> i32 {
    // Times are within ±292 000 years, so days are within i32.
    time.div_euclid(DAY) as i32
}

/// A time as RFC 3339 in UTC with microseconds.
pub fn time_text(time: i64) -> String {
    let (days, rest) = (time.div_euclid(DAY), time.rem_euclid(DAY));
    let (seconds, micros) = (rest / 1_000_000, rest % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z", date_text(days))
}

/// A number of days since 1970 as YYYY-MM-DD.
pub fn date_text(days: i64) -> String {
    // Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
    let shifted = days + DAYS_TO_1970;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The days since 1970 of a date; none if there is no such day.
fn days_of(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    // Postgres has no year 0.
    if year == 0 || !(1..=12).contains(&month) || !(1..=length).contains(&day) {
        return None;
    }
    // Source: as above, days_from_civil.
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    Some(era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - DAYS_TO_1970)
}

/// What is left of a text.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn digits(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        digits.iter().try_fold(0, |value, digit| digit.is_ascii_digit().then(|| value * 10 + i64::from(digit - b'0')))
    }

    fn one_of(&mut self, wanted: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        if !wanted.contains(first) {
            return None;
        }
        self.0 = rest;
        Some(*first)
    }

    fn date(&mut self) -> Option<i64> {
        let year = self.digits(4)?;
        self.one_of(b"-")?;
        let month = self.digits(2)?;
        self.one_of(b"-")?;
        days_of(year, month, self.digits(2)?)
    }
}

fn parse_rfc3339(text: &str) -> Option<i64> {
    let mut cursor = Cursor(text.as_bytes());
    let days = cursor.date()?;
    cursor.one_of(b"Tt ")?;
    let hour = cursor.digits(2)?;
    cursor.one_of(b":")?;
    let minute = cursor.digits(2)?;
    cursor.one_of(b":")?;
    let second = cursor.digits(2)?;
    // A leap second is the first one of the next minute, as in Postgres.
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut micros = 0;
    if cursor.one_of(b".").is_some() {
        let count = cursor.0.iter().take_while(|digit| digit.is_ascii_digit()).count();
        if count == 0 {
            return None;
        }
        let digits = cursor.0.get(..count)?;
        cursor.0 = cursor.0.get(count..)?;
        micros = rounded_micros(digits);
    }
    let offset = match cursor.one_of(b"Zz+-")? {
        sign @ (b'+' | b'-') => {
            let hours = cursor.digits(2)?;
            cursor.one_of(b":")?;
            let minutes = cursor.digits(2)?;
            // Postgres takes no zone beyond 15:59.
            if hours > 15 || minutes > 59 {
                return None;
            }
            (hours * 60 + minutes) * if sign == b'-' { -1 } else { 1 }
        }
        _ => 0,
    };
    if !cursor.0.is_empty() {
        return None;
    }
    Some(days * DAY + ((hour * 60 + minute - offset) * 60 + second) * 1_000_000 + micros)
}

/// The digits of a fraction of a second as microseconds, 0 to 1 000 000.
fn rounded_micros(digits: &[u8]) -> i64 {
    let digit = |place: usize| digits.get(place).map_or(0, |digit| i64::from(digit - b'0'));
    let micros = (0..6).fold(0, |value, place| value * 10 + digit(place));
    let beyond = digits.get(7..).is_some_and(|rest| rest.iter().any(|digit| *digit != b'0'));
    let up = match digit(6) {
        5 => beyond || micros % 2 == 1,
        next => next > 5,
    };
    micros + i64::from(up)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop_assert_eq, proptest};

    #[test]
    fn times_are_read() {
        for (text, time) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2013-01-01T05:15:00.5+07:00", 1_356_992_100_500_000),
            ("2026-02-01t23:30:00-05:00", 1_770_006_600_000_000),
            ("2026-02-01 04:01:40z", 1_769_918_500_000_000),
            ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),
            ("2000-02-29T00:00:00.1234565Z", 951_782_400_123_456),
            ("2000-02-29T00:00:00.1234575Z", 951_782_400_123_458),
            ("2000-02-29T00:00:00.12345650001Z", 951_782_400_123_457),
            ("1769918500123", 1_769_918_500_123_000),
            ("-1", -1000),
            ("0.0005", 0),
            ("0.0015", 2),
            ("1e3", 1_000_000),
        ] {
            assert_eq!(parse_time(text), Ok(time), "{text}");
        }
        for text in [
            "",
            "now",
            "2013",
            "2013-01-01",
            "2013-01-01T00:00:00",
            "2013-01-01T00:00:00 Z",
            "2013-02-29T00:00:00Z",
            "0000-01-01T00:00:00Z",
            "2013-13-01T00:00:00Z",
            "2013-01-01T24:00:00Z",
            "2013-01-01T00:00:00.Z",
            "2013-01-01T00:00:00+7",
            "2013-01-01T00:00:00+16:00",
            "2013-01-01T00:00:00Zx",
            "२०१३-01-01T00:00:00Z",
        ] {
            if text != "2013" {
                assert_eq!(parse_time(text), Err(NOT_A_TIME), "{text}");
            }
        }
        for text in ["1e30", "-1e100000", "9223372036854775807", "-210866803200001"] {
            assert_eq!(parse_time(text), Err(OUT_OF_RANGE), "{text}");
        }
    }

    #[test]
    fn dates_are_read() {
        for (text, date) in [("1970-01-01", 0), ("2000-02-29", 11_016), ("0001-01-01", -719_162), ("-1", -1)] {
            assert_eq!(parse_date(text), Ok(date), "{text}");
        }
        for text in ["2013-02-29", "2013-1-1", "2013-01-01T00:00:00Z", "today", ""] {
            assert_eq!(parse_date(text), Err(NOT_A_DATE), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(time in -62_135_596_800_000_000i64..253_402_300_800_000_000) {
            prop_assert_eq!(parse_time(&time_text(time)), Ok(time));
            let days = i64::from(date_of(time));
            prop_assert_eq!(parse_date(&date_text(days)).map(i64::from), Ok(days));
        }

        #[test]
        fn reading_never_panics(text in "[-+0-9TZ:. ]{0,30}|.{0,20}") {
            let _ = parse_time(&text);
            let _ = parse_date(&text);
        }
    }
}
