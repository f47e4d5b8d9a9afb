package pgstore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

var ownTables = []string{sqlkit.RowTable, sqlkit.FloorTable, sqlkit.NameTable, sqlkit.SlotTable, sqlkit.ValueTable}

// initSchema is where Init creates the tables without InSchema.
const initSchema = "public"

// tables selects the schemas that have one of some tables, the name of the table, its owner, and whether the owner may
// be trusted with the user's locks: a superuser, the owner of the database, the user, a role of which the user is a
// member, or the owner of a schema that the caller has chosen. Any user with the right to create schemas may own a
// schema that has the user's name. The query depends on no setting that other code may have left
// in the session, such as the search path or the role.
const tables = `SELECT pg_catalog.encode(pg_catalog.convert_to(n.nspname::pg_catalog.text, 'UTF8'), 'hex'), c.relname, o.rolname,
	o.rolsuper OR c.relowner = d.datdba OR o.rolname = session_user
		OR NOT u.rolsuper AND pg_catalog.pg_has_role(session_user, c.relowner, 'MEMBER') OR %[2]s AND c.relowner = n.nspowner AND n.nspname <> session_user
	FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
	JOIN pg_catalog.pg_roles o ON o.oid = c.relowner JOIN pg_catalog.pg_roles u ON u.rolname = session_user
	JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()
	WHERE c.relname IN (%[1]s) AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
	AND %[3]s ORDER BY 1, 2`

// mayUse is a condition for the schemas that the user may use.
const mayUse = `(pg_catalog.has_schema_privilege(session_user, n.oid, 'USAGE') OR pg_catalog.has_schema_privilege(n.oid, 'USAGE'))`

// locate returns the schema that has some tables: one of those of the configuration, or else any that the
// user may use. It returns an empty text if there is none, and refuses a choice between several. It ignores tables that
// another user may have created to change the locks of others, and refuses them if there are no others. what
// describes the tables for errors, and choose says how to choose a schema.
func (s *store) locate(ctx context.Context, l sqlkit.Link, what, choose string, tableNames ...string) (schema string, err error) {
	chosen, where := "false", mayUse
	if len(s.cfg.schemas) > 0 {
		chosen, where = "true", "n.nspname IN ("+texts(s.cfg.schemas)+")"
	}
	a, err := l.Run(ctx, fmt.Sprintf(tables, texts(tableNames), chosen, where))
	if err != nil {
		return "", unreached(err)
	}
	var names, found []string
	strangers := map[string]error{} // by schema
	for _, row := range a[len(a)-1] {
		decoded, err := hex.DecodeString(row.Text(0))
		if err != nil {
			return "", driver.Errorf(driver.CodeUnavailable, "pgstore: the name of a schema: %w", err)
		}
		name, table, owner := string(decoded), row.Text(1), row.Text(2)
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		if !row.True(3) {
			strangers[name] = driver.Errorf(driver.CodeRefused, "pgstore: table %s.%s belongs to user %s, "+
				"who is neither a superuser nor the owner of the database: another user may have created it to change the locks of others. "+
				"If not, give it another owner by ALTER TABLE %[1]s.%[2]s OWNER TO ..., or %s", quoted(name), table, owner, fmt.Sprintf(choose, name))
		}
	}
	for _, name := range names {
		if strangers[name] == nil {
			found, schema = append(found, name), name
		}
	}
	switch {
	case len(found) > 1:
		return "", driver.Errorf(driver.CodeRefused, "pgstore: the schemas %s have %s, and locks in one schema do not exclude those in another: %s",
			strings.Join(found, " and "), what, fmt.Sprintf(choose, found[0]))
	case len(found) == 0 && len(names) > 0:
		return "", strangers[names[0]]
	}
	return schema, nil
}

// texts returns a list of literals, which mean the same under every setting.
func texts(all []string) string {
	var list []string
	for _, s := range all {
		list = append(list, "pg_catalog.convert_from("+lit([]byte(s))+", 'UTF8')")
	}
	return strings.Join(list, ", ")
}

// errNoTables is the error of a store without holdfast's tables.
var errNoTables = errors.New("holdfast's tables do not exist: run holdfast init URL, or Init")

// locateTables returns the schema of holdfast's tables, or an empty text if there are none.
func (s *store) locateTables(ctx context.Context, l sqlkit.Link) (string, error) {
	return s.locate(ctx, l, "tables of holdfast", "choose the schema, as in schema=%s in the URL", ownTables...)
}

// findSchema returns the schema of holdfast's tables.
func (s *store) findSchema(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, sqlkit.AnswerWithin)
	defer cancel()
	l, err := s.dial(ctx)
	if err != nil {
		return "", err
	}
	defer l.Close()
	schema, err := s.locateTables(ctx, l)
	if err == nil && schema == "" {
		return "", driver.Errorf(driver.CodeRefused, "pgstore: %s%w", s.inSchemas(), errNoTables)
	}
	return schema, err
}

// inSchemas names the schemas of the configuration for an error.
func (s *store) inSchemas() string {
	if len(s.cfg.schemas) == 0 {
		return ""
	}
	return "in schema " + strings.Join(s.cfg.schemas, " or ") + ": "
}

// resolve finds the schema of holdfast's tables, unless it is known. It stays the same as long as the store is open.
func (s *store) resolve(ctx context.Context) error {
	_, err := s.schema.Read(ctx)
	return err
}

// usesTables reports whether the locks need holdfast's tables.
func (s *store) usesTables() bool {
	return s.writesRows() || s.cfg.Recipe == Pessimistic && s.cfg.Table == ""
}

// in returns the name of a table with its schema, which resolve or the probe has found.
func (s *store) in(table string) string {
	if table == s.cfg.Table {
		return s.facts().table
	}
	schema, _ := s.schema.Facts()
	return quoted(schema) + "." + table
}

// quoted returns a name as an identifier. The server's quote_ident depends on a setting of the session.
func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// pathSchemas returns the schemas of a search path, except that of the user's name.
func pathSchemas(path string) (schemas []string) {
	for part := range strings.SplitSeq(path, ",") {
		part = strings.TrimSpace(part)
		if name, ok := strings.CutPrefix(part, `"`); ok {
			part = strings.ReplaceAll(strings.TrimSuffix(name, `"`), `""`, `"`)
		} else {
			part = strings.ToLower(part)
		}
		if part != "" && part != "$user" {
			schemas = append(schemas, part)
		}
	}
	return schemas
}
