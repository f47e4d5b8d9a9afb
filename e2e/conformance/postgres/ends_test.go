package postgres

import (
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

func TestCrashFreesAtOnce(t *testing.T)            { sqltest.CrashFreesAtOnce(t, postgres) }
func TestDeletedRowEndsTheGrant(t *testing.T)      { sqltest.DeletedRowEndsTheGrant(t, postgres) }
func TestClockSetForwardEndsTheGrant(t *testing.T) { sqltest.ClockSetForwardEndsTheGrant(t, postgres) }
