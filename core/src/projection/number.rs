//! Exact numbers, read from their own digits: never through floating point.
//!
//! Invariants: a [`Number`] is within the limits of Postgres's `numeric` when it is read, so that an exponent such as
//! `1e999999999` cannot eat memory. A sum that leaves the range of `i128` goes on as a decimal and is never wrong.

use std::cmp::Ordering;
use std::str::FromStr;

use bigdecimal::BigDecimal;

/// The most digits that `numeric` holds before the decimal point.
pub const MAXIMUM_DIGITS_BEFORE_POINT: i64 = 131_072;

/// The most digits that `numeric` holds after the decimal point.
pub const MAXIMUM_DIGITS_AFTER_POINT: i64 = 16_383;

const NOT_A_NUMBER: &str = "is not a number";
const OUT_OF_NUMERIC: &str = "has more digits than numeric holds";
const NOT_AN_INTEGER: &str = "is not an integer";
const OUT_OF_INTEGER: &str = "is out of range for an integer";

/// An exact number: the fast form while it is a small integer, else a decimal.
#[derive(Debug, Clone)]
pub enum Number {
    /// An integer in the range of `i128`.
    Integer(i128),
    /// Any other number.
    Decimal(BigDecimal),
}

impl Number {
    /// Zero, where every sum begins.
    pub const ZERO: Number = Number::Integer(0);

    /// Reads a decimal number: sign, digits, point, exponent, with spaces around it as Postgres allows them.
    ///
    /// # Errors
    /// The reason as a clause that follows the value: no number, or more digits than `numeric` holds.
    pub fn parse(text: &str) -> Result<Number, &'static str> {
        if let Some(small) = parse_small(text) {
            return Ok(Number::Integer(small.into()));
        }
        let parts = Parts::of(text).ok_or(NOT_A_NUMBER)?;
        if parts.fraction.is_empty()
            && parts.exponent == 0
            && let Some(integer) = parts.integer_value()
        {
            return Ok(Number::Integer(integer));
        }
        let significant = parts.integer.trim_start_matches('0');
        if significant.is_empty() && parts.fraction.bytes().all(|digit| digit == b'0') {
            return Ok(Number::Integer(0));
        }
        let before = significant.len() as i64 + parts.exponent;
        let after = parts.fraction.len() as i64 - parts.exponent;
        if before > MAXIMUM_DIGITS_BEFORE_POINT || after > MAXIMUM_DIGITS_AFTER_POINT {
            return Err(OUT_OF_NUMERIC);
        }
        BigDecimal::from_str(text.trim_ascii()).map(Number::Decimal).map_err(|_| NOT_A_NUMBER)
    }

    /// Reads a number that is an exact integer: `1000`, `1e3` and `2.0` are, `2.5` is not.
    ///
    /// # Errors
    /// The reason as a clause that follows the value.
    pub fn parse_integer(text: &str) -> Result<i128, &'static str> {
        if let Some(small) = parse_small(text) {
            return Ok(small.into());
        }
        let parts = Parts::of(text).ok_or(NOT_A_NUMBER)?;
        parts.integer_value().ok_or_else(|| if parts.is_integer() { OUT_OF_INTEGER } else { NOT_AN_INTEGER })
    }

    /// The sum, exact.
    #[must_use]
    pub fn plus(&self, other: &Number) -> Number {
        if let (Number::Integer(left), Number::Integer(right)) = (self, other)
            && let Some(sum) = left.checked_add(*right)
        {
            return Number::Integer(sum);
        }
        Number::Decimal(self.to_decimal() + other.to_decimal())
    }

    /// The number as a decimal.
    pub fn to_decimal(&self) -> BigDecimal {
        match self {
            Number::Integer(integer) => BigDecimal::from(*integer),
            Number::Decimal(decimal) => decimal.clone(),
        }
    }

    /// The number as a `bigint`, if it is one.
    pub fn to_bigint(&self) -> Option<i64> {
        match self {
            Number::Integer(integer) => i64::try_from(*integer).ok(),
            // A sum that left i128 and came back is a decimal still.
            Number::Decimal(decimal) => {
                let limit = BigDecimal::from(i128::MAX);
                if decimal.abs() > limit || !decimal.is_integer() {
                    return None;
                }
                let (digits, _) = decimal.with_scale(0).into_bigint_and_exponent();
                i64::try_from(digits).ok()
            }
        }
    }

    /// The digits, in a spelling that Postgres's `numeric` reads.
    pub fn to_text(&self) -> String {
        match self {
            Number::Integer(integer) => integer.to_string(),
            Number::Decimal(decimal) => decimal.to_string(),
        }
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Number {}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Number) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Number) -> Ordering {
        match (self, other) {
            (Number::Integer(left), Number::Integer(right)) => left.cmp(right),
            (Number::Decimal(left), Number::Decimal(right)) => left.cmp(right),
            _ => self.to_decimal().cmp(&other.to_decimal()),
        }
    }
}

/// A plain integer of at most 18 digits: nearly every number of nearly every event.
fn parse_small(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let (negative, digits) = match bytes.split_first() {
        Some((b'-', digits)) => (true, digits),
        _ => (false, bytes),
    };
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let mut value: i64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + i64::from(digit - b'0');
    }
    Some(if negative { -value } else { value })
}

/// The parts of a number's spelling.
struct Parts<'a> {
    negative: bool,
    integer: &'a str,
    fraction: &'a str,
    /// Cut off at ±10^9, far outside every limit, so that sums with lengths cannot overflow.
    exponent: i64,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Option<Parts<'a>> {
        let text = text.trim_ascii();
        let (negative, unsigned) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            None => (unsigned, 0),
            Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
        };
        let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if integer.len() + fraction.len() == 0 || !digits(integer) || !digits(fraction) {
            return None;
        }
        Some(Parts { negative, integer, fraction, exponent })
    }

    /// The digits without zeros at either end, and the power of ten to multiply them by.
    fn significant(&self) -> (impl Iterator<Item = u8> + Clone + use<'a>, i64) {
        let (integer, fraction) = (self.integer, self.fraction.trim_end_matches('0'));
        let (integer, zeros) = if fraction.is_empty() {
            let trimmed = integer.trim_end_matches('0');
            (trimmed, (integer.len() - trimmed.len()) as i64)
        } else {
            (integer, 0)
        };
        let digits = integer.bytes().chain(fraction.bytes()).skip_while(|digit| *digit == b'0');
        (digits, self.exponent + zeros - fraction.len() as i64)
    }

    fn is_integer(&self) -> bool {
        let (mut digits, power) = self.significant();
        digits.next().is_none() || power >= 0
    }

    fn integer_value(&self) -> Option<i128> {
        let (digits, power) = self.significant();
        let count = digits.clone().count() as i64;
        if count == 0 {
            return Some(0);
        }
        // 10^38 is the greatest power of ten below 2^127.
        if power < 0 || count + power > 39 {
            return None;
        }
        let mut value: i128 = 0;
        for digit in digits.chain(std::iter::repeat_n(b'0', power as usize)) {
            let digit = i128::from(digit - b'0');
            value = value.checked_mul(10)?.checked_add(digit)?;
        }
        Some(if self.negative { -value } else { value })
    }
}

fn parse_exponent(text: &str) -> Option<i64> {
    const LIMIT: i64 = 1_000_000_000;
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value = digits.bytes().fold(0i64, |value, digit| (value * 10 + i64::from(digit - b'0')).min(LIMIT));
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    #[test]
    fn integers_have_several_spellings() {
        for (text, value) in [
            ("0", 0),
            ("-0", 0),
            ("1e3", 1000),
            ("2.0", 2),
            ("2.50e1", 25),
            ("1200e-2", 12),
            ("  7 ", 7),
            ("+7", 7),
            ("007", 7),
            ("0e999999999999", 0),
            ("0.000", 0),
            ("170141183460469231731687303715884105727", i128::MAX),
            ("-9223372036854775808", i64::MIN.into()),
        ] {
            assert_eq!(Number::parse_integer(text), Ok(value), "{text}");
            assert_eq!(Number::parse(text), Ok(Number::parse(&value.to_string()).unwrap()), "{text}");
        }
        assert_eq!(Number::parse_integer("2.5"), Err(NOT_AN_INTEGER));
        assert_eq!(Number::parse_integer("1e-999999999999"), Err(NOT_AN_INTEGER));
        assert_eq!(Number::parse_integer("1e999999999999"), Err(OUT_OF_INTEGER));
        assert_eq!(Number::parse_integer("170141183460469231731687303715884105728"), Err(OUT_OF_INTEGER));
        for text in ["", " ", "-", "x", "1x", "1e", "1e+", ".", "1.2.3", "NaN", "Infinity", "0x10", "1_0", "٣", "1 2"]
        {
            assert_eq!(Number::parse(text), Err(NOT_A_NUMBER), "{text}");
            assert_eq!(Number::parse_integer(text), Err(NOT_A_NUMBER), "{text}");
        }
    }

    #[test]
    fn limits_of_numeric_are_kept() {
        for text in ["1e131071", "9.99e131071", "1e-16383", "0.5e-16382"] {
            assert!(Number::parse(text).is_ok(), "{text}");
        }
        for text in ["1e131072", "1e999999999", "1e-16384", "-1e99999999999999999999"] {
            assert_eq!(Number::parse(text), Err(OUT_OF_NUMERIC), "{text}");
        }
        assert_eq!(Number::parse("1e131071").unwrap().to_text().len(), "1E+131071".len());
    }

    #[test]
    fn sums_leave_the_fast_form_and_come_back() {
        let greatest = Number::Integer(i128::MAX);
        let more = greatest.plus(&Number::Integer(5));
        assert_eq!(more.to_text(), "170141183460469231731687303715884105732");
        assert!(more > greatest);
        assert_eq!(more.to_bigint(), None);
        let back = more.plus(&Number::Integer(-i128::MAX));
        assert_eq!(back, Number::Integer(5));
        assert_eq!(back.to_bigint(), Some(5));
        assert_eq!(Number::parse("2.5").unwrap().to_bigint(), None);
        assert_eq!(Number::parse("1e100000").unwrap().to_bigint(), None);
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in "[-+0-9.eE ]{0,40}|.{0,20}") {
            let _ = Number::parse(&text);
            let _ = Number::parse_integer(&text);
        }

        #[test]
        fn digits_are_kept(value: i128, fraction in any::<u32>()) {
            prop_assert_eq!(Number::parse(&value.to_string()), Ok(Number::Integer(value)));
            let text = format!("{value}.{fraction:010}");
            prop_assert_eq!(Number::parse(&text).unwrap().to_decimal(), BigDecimal::from_str(&text).unwrap());
        }
    }
}
