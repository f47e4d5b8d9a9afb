-- The tables of holdfast's recipes on PostgreSQL. `holdfast init URL` runs this file. A user with
-- the right to create tables can also run it, in any schema. If several schemas have the tables,
-- the stores' URLs choose one by schema=NAME. Every statement can run again.
-- The recipe advisory needs none of it, unless its tokens are durable.

-- optimistic: one row per name in use, removed a minute after its last use.
-- Times are microseconds since 1970, UTC. Every change makes a new version of the
-- row; room on its page keeps them out of the index.
CREATE TABLE IF NOT EXISTS holdfast_row (
	name    bytea    NOT NULL PRIMARY KEY, -- namespace, NUL, name
	bucket  smallint NOT NULL,
	version bigint   NOT NULL, -- of the row: every write makes a new one
	token   bigint   NOT NULL, -- of the last grant
	expires bigint   NOT NULL, -- of the last grant
	touched bigint   NOT NULL,
	state   text     NOT NULL -- the grants, as JSON
) WITH (fillfactor = 50);

-- The high-water mark of tokens for names without a row: 64 rows that stay forever.
CREATE TABLE IF NOT EXISTS holdfast_floor (
	bucket smallint NOT NULL PRIMARY KEY,
	token  bigint   NOT NULL
);
INSERT INTO holdfast_floor (bucket, token) SELECT n, 0 FROM pg_catalog.generate_series(0, 63) AS n ON CONFLICT DO NOTHING;

-- pessimistic: one row per name; a session locks the row. permits is the size of a semaphore,
-- or 0 if the name is not a semaphore.
CREATE TABLE IF NOT EXISTS holdfast_name (
	name    bytea NOT NULL PRIMARY KEY, -- namespace, NUL, name
	permits int   NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- The permits of semaphores.
CREATE TABLE IF NOT EXISTS holdfast_slot (
	name bytea NOT NULL,
	slot int   NOT NULL,
	PRIMARY KEY (name, slot)
) WITH (fillfactor = 50);

-- Versioned values of users: optimistic.Update and holdfast run --once.
CREATE TABLE IF NOT EXISTS holdfast_value (
	name    bytea NOT NULL PRIMARY KEY, -- namespace, NUL, key
	version text  NOT NULL, -- every write makes a new one
	data    bytea NOT NULL
) WITH (fillfactor = 50);
