-- The tables of holdfast's recipes on MySQL and MariaDB. `holdfast init URL` runs this file.
-- A user with the right to create tables can also run it, in the schema that the stores' URLs
-- name. Every statement can run again.

-- optimistic: one row per name in use, removed a minute after its last use.
-- Times are microseconds since 1970, UTC.
CREATE TABLE IF NOT EXISTS holdfast_row (
	name    VARBINARY(641) NOT NULL PRIMARY KEY, -- namespace, NUL, name
	bucket  SMALLINT   NOT NULL,
	version BIGINT     NOT NULL, -- of the row: every write makes a new one
	token   BIGINT     NOT NULL, -- of the last grant
	expires BIGINT     NOT NULL, -- of the last grant
	touched BIGINT     NOT NULL,
	state   MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL -- the grants, as JSON
) ENGINE=InnoDB;

-- The high-water mark of tokens for names without a row: 64 rows that stay forever.
CREATE TABLE IF NOT EXISTS holdfast_floor (
	bucket SMALLINT NOT NULL PRIMARY KEY,
	token  BIGINT   NOT NULL
) ENGINE=InnoDB;
INSERT INTO holdfast_floor (bucket, token)
	SELECT a.n * 16 + b.n * 4 + c.n, 0 FROM
		(SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3) a,
		(SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3) b,
		(SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3) c
	ON DUPLICATE KEY UPDATE token = holdfast_floor.token;

-- pessimistic: one row per name; a session locks the row. permits is the size of a semaphore,
-- or 0 if the name is not a semaphore.
CREATE TABLE IF NOT EXISTS holdfast_name (
	name    VARBINARY(641) NOT NULL PRIMARY KEY, -- namespace, NUL, name
	permits INT NOT NULL DEFAULT 0
) ENGINE=InnoDB;

-- The permits of semaphores.
CREATE TABLE IF NOT EXISTS holdfast_slot (
	name VARBINARY(641) NOT NULL,
	slot INT NOT NULL,
	PRIMARY KEY (name, slot)
) ENGINE=InnoDB;

-- pessimistic and named: what each session holds, for inspection. No decision depends on
-- it. A row counts while a session has the named lock that held names. Rows that no
-- longer count are removed.
SET @holdfast = (SELECT IF(COUNT(*) > 0, 'DROP TABLE holdfast_session', 'DO 0') FROM information_schema.tables
	WHERE table_schema = DATABASE() AND table_name = 'holdfast_session' AND engine = 'MEMORY'); -- of an earlier layout
PREPARE holdfast FROM @holdfast;
EXECUTE holdfast;
DEALLOCATE PREPARE holdfast;
CREATE TABLE IF NOT EXISTS holdfast_session (
	held  VARBINARY(64)   NOT NULL PRIMARY KEY, -- of GET_LOCK, one per grant
	conn  BIGINT UNSIGNED NOT NULL, -- CONNECTION_ID()
	name  VARBINARY(641)  NOT NULL, -- namespace, NUL, name
	lockname VARBINARY(192) NOT NULL, -- of GET_LOCK, the lock itself; pessimistic: empty, or a NUL and the user's table
	token BIGINT          NOT NULL,
	slot  INT             NOT NULL,
	taken BIGINT          NOT NULL, -- when an operator broke it, in microseconds since 1970, UTC; else 0
	label VARBINARY(1400) NOT NULL -- the owner
) ENGINE=InnoDB;

-- Versioned values of users: optimistic.Update and holdfast run --once.
CREATE TABLE IF NOT EXISTS holdfast_value (
	name    VARBINARY(641)  NOT NULL PRIMARY KEY, -- namespace, NUL, key
	version VARBINARY(26)   NOT NULL, -- every write makes a new one
	data    MEDIUMBLOB      NOT NULL
) ENGINE=InnoDB;
