-- Names and operators in views, checks and defaults are looked up when this script runs. CREATE EXTENSION looks in the
-- schema that the user chose as well, where others may have put their own; the script names all that is not built in.
SET LOCAL search_path TO pg_catalog, pg_temp;
