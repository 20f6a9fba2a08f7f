//! What the catalog says of tables, types and collations, as far as a page needs it.

use std::ffi::{CStr, CString, c_char};

use lanes_core::page::order::{Column, Operators, SortKey};
use lanes_core::page::quote;
use pgrx::datum::IntoDatum;
use pgrx::fcinfo::direct_function_call;
use pgrx::pg_sys::{self, Datum, Oid, SysCacheIdentifier};

use crate::encoding::{Text, from_utf8};
use crate::query::{self, Row};

/// A table that can be paged over.
pub(crate) struct Table {
    /// Its number.
    pub(crate) id: Oid,
    /// Its schema and name as SQL takes them.
    pub(crate) name: String,
    /// Whether it is partitioned.
    pub(crate) is_partitioned: bool,
    /// Its columns.
    pub(crate) columns: Vec<TableColumn>,
}

/// A column of a table.
pub(crate) struct TableColumn {
    /// Its name.
    pub(crate) name: String,
    /// Its type; of a domain, the type below.
    pub(crate) type_id: Oid,
    /// Its collation, or none (0).
    pub(crate) collation_id: Oid,
    /// Whether it can be null.
    pub(crate) is_nullable: bool,
    /// Its place in the table's key, and its collation there.
    key: Option<(i32, Oid)>,
    /// Whether it is the shard column that `lanes.add_shard_column` made.
    is_shard: bool,
    /// Whether an index begins with it.
    leads_index: bool,
}

impl TableColumn {
    /// The column as the rules know it, or `None` if its type has no order.
    pub(crate) fn comparable(&self) -> Option<Column> {
        Some(Column {
            name: self.name.clone(),
            type_id: self.type_id.to_u32(),
            collation_id: self.collation_id.to_u32(),
            is_nullable: self.is_nullable,
            operators: operators(self.type_id)?,
        })
    }

    /// An ascending sort key of this column in a collation, or `None` if its type has no order.
    pub(crate) fn sort_key(&self, collation: Oid) -> Option<SortKey> {
        let column = Column { collation_id: collation.to_u32(), ..self.comparable()? };
        let collation = (collation != self.collation_id).then(|| collation_name(collation)).flatten();
        Some(SortKey { column, collation, is_descending: false, nulls_first: false })
    }
}

impl Table {
    /// The table with this number, locked against changes until the transaction ends. Raises why it cannot be paged over.
    pub(crate) fn open(id: Oid) -> Table {
        // SAFETY: takes the lock that the page's statement takes anyway, so that what is read here still holds then.
        unsafe { pg_sys::LockRelationOid(id, pg_sys::AccessShareLock as i32) };
        let sql = "SELECT c.column_name, c.type_id, c.collation_id, c.is_nullable, c.key_position, c.key_collation_id, \
                   c.is_shard, c.leads_index FROM lanes.page_columns($1) AS c";
        let parameter = (pg_sys::REGCLASSOID, Datum::from(id));
        let columns = query::select(sql, &[parameter], |rows| rows.iter().map(table_column).collect());
        // SAFETY: looks up a table that exists.
        let (schema, name, kind) =
            unsafe { (pg_sys::get_rel_namespace(id), pg_sys::get_rel_name(id), pg_sys::get_rel_relkind(id)) };
        // SAFETY: two strings of Postgres's own; the lock keeps the table there.
        let name = string(unsafe { pg_sys::quote_qualified_identifier(pg_sys::get_namespace_name(schema), name) });
        Table { id, name, is_partitioned: kind == pg_sys::RELKIND_PARTITIONED_TABLE as c_char, columns }
    }

    /// The column with this name.
    pub(crate) fn column(&self, name: &str) -> Option<&TableColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The columns that tell any two rows apart, in the order and the collations of their index. An error holds a column
    /// whose type has no order.
    pub(crate) fn key(&self) -> Result<Vec<SortKey>, &TableColumn> {
        let mut key: Vec<_> = self.columns.iter().filter_map(|column| Some((column.key?, column))).collect();
        key.sort_by_key(|((position, _), _)| *position);
        let key = key.into_iter().map(|((_, collation), column)| column.sort_key(collation).ok_or(column));
        key.collect()
    }

    /// The shard column that `lanes.add_shard_column` made. To read by, it has to lead an index.
    pub(crate) fn shard_column(&self, to_read: bool) -> Option<&TableColumn> {
        self.columns.iter().find(|column| column.is_shard && (column.leads_index || !to_read))
    }
}

/// A row of `lanes.page_columns`.
fn table_column(row: &Row) -> TableColumn {
    let number = |column| row.value(column).map_or(Oid::INVALID, |datum| Oid::from(datum.value() as u32));
    let truth = |column| row.value(column).is_some_and(|datum| datum.value() as u8 != 0);
    TableColumn {
        name: row.name(1).map(utf8).unwrap_or_default(),
        // SAFETY: looks up a type that exists.
        type_id: unsafe { pg_sys::getBaseType(number(2)) },
        collation_id: number(3),
        is_nullable: truth(4),
        key: row.value(5).map(|position| (position.value() as i32, number(6))),
        is_shard: truth(7),
        leads_index: truth(8),
    }
}

/// The operators of a type's order, or `None` if it has none.
fn operators(type_id: Oid) -> Option<Operators> {
    let wanted = pg_sys::TYPECACHE_LT_OPR | pg_sys::TYPECACHE_BTREE_OPFAMILY;
    // SAFETY: looks up a type that exists; the entry lives as long as the session.
    let entry = unsafe { &*pg_sys::lookup_type_cache(type_id, wanted as i32) };
    if entry.lt_opr == Oid::INVALID {
        return None;
    }
    let operator = |strategy: u32| {
        // SAFETY: a family that the type cache names.
        let operator = unsafe {
            let input = entry.btree_opintype;
            pg_sys::get_opfamily_member(entry.btree_opf, input, input, strategy as i16)
        };
        let (schema, name) = cached(SysCacheIdentifier::OPEROID, operator, |row: &pg_sys::FormData_pg_operator| {
            (row.oprnamespace, name_string(&row.oprname))
        })?;
        // The name of an operator is never quoted.
        Some(format!("OPERATOR({}.{name})", quote(&schema_name(schema))))
    };
    Some(Operators {
        less: operator(pg_sys::BTLessStrategyNumber)?,
        less_or_equal: operator(pg_sys::BTLessEqualStrategyNumber)?,
        equal: operator(pg_sys::BTEqualStrategyNumber)?,
        greater_or_equal: operator(pg_sys::BTGreaterEqualStrategyNumber)?,
        greater: operator(pg_sys::BTGreaterStrategyNumber)?,
    })
}

/// The collation that the caller's `search_path` finds under this name. Raises 42704 if there is none.
pub(crate) fn find_collation(name: &[String]) -> Oid {
    let name: Vec<String> = name.iter().map(|part| quote(part)).collect();
    let name = CString::new(from_utf8(&name.join("."))).expect("a text has no zero byte");
    // SAFETY: the input function of regcollation, which takes a string.
    let collation = unsafe { direct_function_call(pg_sys::regcollationin, &[name.as_c_str().into_datum()]) };
    collation.expect("regcollationin returns no null")
}

/// A collation's schema and name as SQL takes them.
fn collation_name(id: Oid) -> Option<String> {
    let (schema, name) = cached(SysCacheIdentifier::COLLOID, id, |row: &pg_sys::FormData_pg_collation| {
        (row.collnamespace, name_string(&row.collname))
    })?;
    Some(format!("{}.{}", quote(&schema_name(schema)), quote(&name)))
}

/// Whether values of a type are compared in a collation.
pub(crate) fn is_collatable(type_id: Oid) -> bool {
    // SAFETY: looks up a type that exists.
    unsafe { pg_sys::type_is_collatable(type_id) }
}

/// A type's name as error messages give it.
pub(crate) fn type_name(type_id: Oid) -> String {
    // SAFETY: gives a new string for any number.
    string(unsafe { pg_sys::format_type_be(type_id) })
}

/// The table whose rows have this type, or `None` if it is no row type.
pub(crate) fn table_of_rows(type_id: Oid) -> Option<Oid> {
    // SAFETY: looks up a type.
    let table = unsafe { pg_sys::get_typ_typrelid(type_id) };
    (table != Oid::INVALID).then_some(table)
}

/// A table of the extension's own, and who owns it.
pub(crate) fn own_table(name: &CStr) -> Option<(Oid, Oid)> {
    // SAFETY: looks up names.
    let id = unsafe { pg_sys::get_relname_relid(name.as_ptr(), pg_sys::get_namespace_oid(c"lanes".as_ptr(), true)) };
    let owner = cached(SysCacheIdentifier::RELOID, id, |row: &pg_sys::FormData_pg_class| row.relowner)?;
    Some((id, owner))
}

/// What a row of the catalog says, or `None` if it is not there. `Form` is the form of the cache's rows.
fn cached<Form, T>(cache: SysCacheIdentifier::Type, id: Oid, read: impl FnOnce(&Form) -> T) -> Option<T> {
    // SAFETY: a cache with one key, whose rows have this form; the row is released after it was read.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(cache as i32, Datum::from(id));
        if tuple.is_null() {
            return None;
        }
        let value = read(&*pg_sys::GETSTRUCT(tuple).cast::<Form>());
        pg_sys::ReleaseSysCache(tuple);
        Some(value)
    }
}

fn utf8(string: &CStr) -> String {
    Text::from_server(string).as_str().into_owned()
}

fn name_string(name: &pg_sys::NameData) -> String {
    // SAFETY: a name is a string with a zero byte at its end.
    utf8(unsafe { CStr::from_ptr(name.data.as_ptr()) })
}

/// A string of the server's, which is not there if what it names has just been dropped.
fn string(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: Postgres's strings end with a zero byte.
    utf8(unsafe { CStr::from_ptr(string) })
}

fn schema_name(id: Oid) -> String {
    // SAFETY: looks up a schema.
    string(unsafe { pg_sys::get_namespace_name(id) })
}
