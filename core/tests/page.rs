//! Pages: the ranges after a place against a plain sort, cursors against forgery, and the SQL as a whole.

use std::cmp::Ordering;

use lanes_core::page::PageError;
use lanes_core::page::cursor::{Query, fingerprint, open, seal};
use lanes_core::page::filter::{Condition, parse_filter};
use lanes_core::page::order::{Column, Operators, SortKey};
use lanes_core::page::place::{Difference, Range, ranges_after};
use lanes_core::page::statement::{Page, Parameter, Source, index_statement, page_statement};
use proptest::prelude::*;

fn operators() -> Operators {
    let operator = |name: &str| format!("OPERATOR(\"pg_catalog\".{name})");
    Operators {
        less: operator("<"),
        less_or_equal: operator("<="),
        equal: operator("="),
        greater_or_equal: operator(">="),
        greater: operator(">"),
    }
}

fn column(name: &str, is_nullable: bool) -> Column {
    Column { name: name.to_owned(), type_id: 23, collation_id: 0, is_nullable, operators: operators() }
}

fn sort_key(name: &str, is_nullable: bool, is_descending: bool, nulls_first: bool) -> SortKey {
    SortKey { column: column(name, is_nullable), collation: None, is_descending, nulls_first }
}

/// A row as the model sees it: a value for each sort key. The last is never null and never the same twice.
type Row = Vec<Option<u32>>;

/// What ORDER BY says of two rows.
fn compare(order: &[SortKey], left: &Row, right: &Row) -> Ordering {
    let compared = order.iter().zip(left.iter().zip(right)).map(|(key, (left, right))| match (left, right) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) if key.nulls_first => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) if key.nulls_first => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(left), Some(right)) if key.is_descending => right.cmp(left),
        (Some(left), Some(right)) => left.cmp(right),
    });
    compared.fold(Ordering::Equal, Ordering::then)
}

/// What the SQL of a range says of a row: null is neither equal to a value nor beyond one, and of a row comparison the
/// first columns that are not equal decide.
fn is_in(range: Range, order: &[SortKey], row: &Row, place: &Row) -> bool {
    let beyond = |end: usize| {
        for at in range.at..end {
            match (row[at], place[at]) {
                (Some(value), Some(of_place)) if value != of_place => {
                    return if order[at].is_descending { value < of_place } else { value > of_place };
                }
                (Some(_), Some(_)) => {}
                _ => return false,
            }
        }
        false
    };
    row[..range.at] == place[..range.at]
        && match range.difference {
            Difference::Null => row[range.at].is_none(),
            Difference::NotNull => row[range.at].is_some(),
            Difference::Beyond { end } => beyond(end),
        }
}

fn orders_and_rows() -> impl Strategy<Value = (Vec<SortKey>, Vec<Row>)> {
    (1usize..4).prop_flat_map(|named| {
        let keys = prop::collection::vec(any::<(bool, bool, bool)>(), named);
        let values = prop::collection::vec(prop::collection::vec(prop::option::of(0u32..3), named), 1..20);
        (keys, any::<bool>(), values).prop_map(|(keys, id_is_descending, values)| {
            let mut order: Vec<SortKey> = keys
                .iter()
                .map(|(is_nullable, is_descending, nulls_first)| {
                    sort_key("k", *is_nullable, *is_descending, *nulls_first)
                })
                .collect();
            order.push(sort_key("id", false, id_is_descending, id_is_descending));
            let rows = values.into_iter().enumerate().map(|(id, mut row)| {
                for (value, (is_nullable, ..)) in row.iter_mut().zip(&keys) {
                    if !is_nullable {
                        *value = Some(value.unwrap_or_default());
                    }
                }
                row.push(Some(id as u32));
                row
            });
            (order, rows.collect())
        })
    })
}

proptest! {
    /// A row is in one range if it comes after the place in the sorted rows, else in none.
    #[test]
    fn ranges_are_the_rows_after_a_place((order, mut rows) in orders_and_rows()) {
        rows.sort_by(|left, right| compare(&order, left, right));
        for (at, place) in rows.iter().enumerate() {
            let is_null: Vec<bool> = place.iter().map(Option::is_none).collect();
            let ranges = ranges_after(&order, &is_null);
            for (number, row) in rows.iter().enumerate() {
                let within = ranges.iter().filter(|range| is_in(**range, &order, row, place)).count();
                prop_assert_eq!(within, usize::from(number > at), "{:?} after {:?}", row, place);
            }
        }
    }

    /// A row comparison has columns of one direction, none of which is null in the place.
    #[test]
    fn row_comparisons_have_one_direction((order, rows) in orders_and_rows()) {
        for place in rows {
            let is_null: Vec<bool> = place.iter().map(Option::is_none).collect();
            for Range { at, difference } in ranges_after(&order, &is_null) {
                if let Difference::Beyond { end } = difference {
                    prop_assert!(order[at..end].iter().all(|key| key.is_descending == order[at].is_descending));
                    prop_assert!(!is_null[at..end].contains(&true));
                }
            }
        }
    }

    /// What was sealed is opened; with any bit changed, any part cut off or another key, it is not.
    #[test]
    fn only_what_was_sealed_is_opened(
        place in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..40)), 0..5),
        key in prop::collection::vec(any::<u8>(), 32..=32),
        bit in any::<prop::sample::Index>(),
        length in any::<prop::sample::Index>(),
    ) {
        let query = fingerprint(&query(&[], &[]));
        let borrowed: Vec<Option<&[u8]>> = place.iter().map(Option::as_deref).collect();
        let cursor = seal(&borrowed, &query, &key);
        prop_assert!(cursor.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
        prop_assert_eq!(open(cursor.as_bytes(), &query, &key), Ok(place));

        let mut other_key = key.clone();
        other_key[0] ^= 1;
        prop_assert_eq!(open(cursor.as_bytes(), &query, &other_key), Err(PageError::Cursor));
        prop_assert_eq!(open(&cursor.as_bytes()[..length.index(cursor.len())], &query, &key), Err(PageError::Cursor));
        let mut altered = cursor.into_bytes();
        let bit = bit.index(altered.len() * 8);
        altered[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(open(&altered, &query, &key), Err(PageError::Cursor));
    }
}

fn query<'a>(order: &'a [SortKey], filter: &'a [Condition]) -> Query<'a> {
    Query { database_id: 5, table_id: 16384, order, filter, window: [None, None] }
}

#[test]
fn a_cursor_is_tied_to_each_part_of_its_query() {
    let order = vec![sort_key("created", true, false, false), sort_key("id", false, false, false)];
    let filter = parse_filter(br#"[["status", "=", "open"], ["id", "in", [1, 2]]]"#).unwrap();
    let base = query(&order, &filter);
    let cursor = seal(&[Some(b"1"), Some(b"2")], &fingerprint(&base), b"key");
    assert!(open(cursor.as_bytes(), &fingerprint(&base), b"key").is_ok());

    let changed_order = |change: fn(&mut SortKey)| {
        let mut order = order.clone();
        change(&mut order[0]);
        order
    };
    let orders = [
        changed_order(|key| key.is_descending = true),
        changed_order(|key| key.nulls_first = true),
        changed_order(|key| key.column.name = "closed".to_owned()),
        changed_order(|key| key.column.type_id = 25),
        changed_order(|key| key.column.collation_id = 950),
        order[..1].to_vec(),
        order.iter().rev().cloned().collect(),
    ];
    let filters = [
        "[]",
        r#"[["status", "=", "open"]]"#,
        r#"[["status", "<>", "open"], ["id", "in", [1, 2]]]"#,
        r#"[["status", "=", "open"], ["id", "in", [12]]]"#,
        r#"[["id", "in", [1, 2]], ["status", "=", "open"]]"#,
        r#"[["statuso", "=", "pen"], ["id", "in", [1, 2]]]"#,
    ]
    .map(|filter| parse_filter(filter.as_bytes()).unwrap());
    let mut others = vec![
        Query { database_id: 6, ..base },
        Query { table_id: 16385, ..base },
        Query { window: [Some(0), None], ..base },
        Query { window: [None, Some(0)], ..base },
    ];
    others.extend(orders.iter().map(|order| Query { order, ..base }));
    others.extend(filters.iter().map(|filter| Query { filter, ..base }));
    for other in others {
        let opened = open(cursor.as_bytes(), &fingerprint(&other), b"key");
        assert_eq!(opened, Err(PageError::OtherQuery), "{other:?}");
    }
}

/// A vector of RFC 4231 pins the signature to the standard: one that only agreed with itself would pass above.
#[test]
fn the_signature_is_hmac_sha_256_of_what_is_before_it() {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use hmac::{Hmac, KeyInit, Mac};
    let sign = |key: &[u8], text: &[u8]| -> Vec<u8> {
        Hmac::<sha2::Sha256>::new_from_slice(key).unwrap().chain_update(text).finalize().into_bytes().to_vec()
    };
    let hex: String = sign(b"Jefe", b"what do ya want for nothing?").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");

    let bytes = URL_SAFE_NO_PAD.decode(seal(&[None, Some(b"42")], &[7; 16], b"a key")).unwrap();
    let (signed, signature) = bytes.split_at(bytes.len() - 32);
    let mut expected = vec![1];
    expected.extend([7; 16]);
    expected.extend([255; 4]);
    expected.extend([2, 0, 0, 0]);
    expected.extend(b"42");
    assert_eq!(signed, expected);
    assert_eq!(signature, sign(b"a key", &expected));
}

#[test]
fn the_statement_reads_every_shard_and_splices_no_value() {
    let shard = column("shard_id", true);
    let table = "\"shop\".\"or\"\"ders\"";
    let source = Source { table, shard: Some(&shard) };
    let collated =
        SortKey { collation: Some("\"pg_catalog\".\"C\"".to_owned()), ..sort_key("na\"me", false, true, true) };
    let order = [collated, sort_key("a", false, false, false), sort_key("id", false, false, false)];
    let conditions = parse_filter(br#"[["status", "in", ["o'k", "x"]], ["doc", "is null"]]"#).unwrap();
    let filter: Vec<_> = conditions.into_iter().zip([Some(operators()), None]).collect();
    let page = Page { source, order: &order, filter: &filter, window: [false; 2], after: Some(&[false; 3]) };
    let name = "(t.\"na\"\"me\" COLLATE \"pg_catalog\".\"C\")";
    let part = |shard: &str| {
        let head = format!(
            "SELECT t.*::{table} AS item, {name} AS k0, t.\"a\" AS k1, t.\"id\" AS k2 FROM {table} AS t WHERE {shard} AND \
             t.\"status\" OPERATOR(\"pg_catalog\".=) ANY (ARRAY[$2, $3]) AND t.\"doc\" IS NULL AND "
        );
        let tail =
            format!("ORDER BY {name} DESC NULLS FIRST, t.\"a\" ASC NULLS LAST, t.\"id\" ASC NULLS LAST LIMIT $1");
        format!(
            "SELECT r.* FROM (\
             ({head}{name} OPERATOR(\"pg_catalog\".<) $4 {tail}) UNION ALL \
             ({head}{name} OPERATOR(\"pg_catalog\".=) $4 AND \
             ROW(t.\"a\", t.\"id\") OPERATOR(\"pg_catalog\".>) ROW($5, $6) {tail})\
             ) AS r ORDER BY r.k0 DESC NULLS FIRST, r.k1 ASC NULLS LAST, r.k2 ASC NULLS LAST LIMIT $1"
        )
    };
    let statement = page_statement(&page);
    assert_eq!(
        statement.sql,
        format!(
            "WITH RECURSIVE shards (shard) AS (\
             (SELECT t.\"shard_id\" FROM {table} AS t WHERE t.\"shard_id\" IS NOT NULL ORDER BY t.\"shard_id\" LIMIT 1) UNION ALL \
             SELECT (SELECT t.\"shard_id\" FROM {table} AS t WHERE t.\"shard_id\" OPERATOR(\"pg_catalog\".>) s.shard \
             ORDER BY t.\"shard_id\" LIMIT 1) FROM shards AS s WHERE s.shard IS NOT NULL) \
             SELECT p.* FROM (SELECT l.* FROM shards AS s CROSS JOIN LATERAL ({}) AS l WHERE s.shard IS NOT NULL UNION ALL ({})) AS p \
             ORDER BY p.k0 DESC NULLS FIRST, p.k1 ASC NULLS LAST, p.k2 ASC NULLS LAST LIMIT $1",
            part("t.\"shard_id\" OPERATOR(\"pg_catalog\".=) s.shard"),
            part("t.\"shard_id\" IS NULL")
        )
    );
    let condition = |condition, value| Parameter::Condition { condition, value };
    assert_eq!(
        statement.parameters,
        [
            Parameter::Limit,
            condition(0, 0),
            condition(0, 1),
            Parameter::Place(0),
            Parameter::Place(1),
            Parameter::Place(2)
        ]
    );
    assert_eq!(
        index_statement(&page, true),
        format!(
            "CREATE INDEX CONCURRENTLY ON {table} (\"shard_id\", \"na\"\"me\" COLLATE \"pg_catalog\".\"C\" DESC, \"a\", \"id\")"
        )
    );
}

/// Without shards, place and filter it is the plain statement that anybody would write.
#[test]
fn the_first_page_of_a_plain_table_is_plain() {
    let order = [sort_key("closed", true, true, false), sort_key("id", false, true, true)];
    let source = Source { table: "\"shop\".\"orders\"", shard: None };
    let page = Page { source, order: &order, filter: &[], window: [true, true], after: None };
    let statement = page_statement(&page);
    assert_eq!(
        statement.sql,
        "SELECT p.* FROM (SELECT t.*::\"shop\".\"orders\" AS item, t.\"closed\" AS k0, t.\"id\" AS k1 \
         FROM \"shop\".\"orders\" AS t WHERE t.\"closed\" OPERATOR(pg_catalog.>=) $2 AND t.\"closed\" OPERATOR(pg_catalog.<) $3 \
         ORDER BY t.\"closed\" DESC NULLS LAST, t.\"id\" DESC NULLS FIRST LIMIT $1) AS p \
         ORDER BY p.k0 DESC NULLS LAST, p.k1 DESC NULLS FIRST LIMIT $1"
    );
    assert_eq!(statement.parameters, [Parameter::Limit, Parameter::Window(0), Parameter::Window(1)]);
    assert_eq!(
        index_statement(&page, false),
        "CREATE INDEX ON \"shop\".\"orders\" (\"closed\" DESC NULLS LAST, \"id\" DESC)"
    );
}
