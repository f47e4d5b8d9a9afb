package etcdstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
)

// login logs a user in for a client of Open, when the first token is needed. The client library
// would log in for each stream, and its constructor would fail while no server is up.
type login struct {
	name     string
	password func() string

	calls   *calls.Calls // logins, and checks of a token's age
	tokens  calls.Shared[*grpc.ClientConn, *token]
	newest  atomic.Pointer[token] // the token of the last login
	refused backoff.Refused
}

func newLogin(name string, password func() string) *login {
	l := &login{name: name, password: password, calls: calls.New()}
	l.tokens = calls.Shared[*grpc.ClientConn, *token]{Calls: l.calls, Timeout: loginTimeout, Make: l.try, Over: func(t *token) bool { return t.dropped.Load() }}
	return l
}

// token is the credential that a login has returned.
type token struct {
	text string // empty where the server has authentication switched off
	// raftIndex is the number of the raft entry at which the token was made, 0 for a JWT.
	raftIndex uint64
	// dropped is set when the server has refused the token. checking is set while its age is checked.
	dropped, checking atomic.Bool
	// over ends when the calls and streams with the token may never be answered.
	over context.Context
	end  context.CancelFunc
}

func newToken(text string) *token {
	t := &token{text: text}
	t.raftIndex, _ = strconv.ParseUint(text[strings.LastIndexByte(text, '.')+1:], 10, 64)
	t.over, t.end = context.WithCancel(context.Background())
	return t
}

// with returns a context for a call with the token. It ends with the token; end frees it.
func (t *token) with(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(t.over, cancel)
	if t.text != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, t.text)
	}
	return ctx, func() { stop(); cancel() }
}

const (
	// loginTimeout limits a login, which queues at the server if many clients log in at once.
	loginTimeout = 15 * time.Second
	// answerTimeout is how long a call may be unanswered before the client checks the age of its
	// token. It also limits each call of that check.
	answerTimeout = time.Second
)

var errNewerToken = status.Error(codes.Unavailable, "etcdstore: the login is newer than the server, which was restored from an older copy")

func (l *login) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(l.unary), grpc.WithChainStreamInterceptor(l.stream)}
}

// get returns the token, and logs in if there is none. The login continues when ctx ends, as other
// calls may wait for it, and an abandoned login has cost the server its time anyway.
func (l *login) get(ctx context.Context, cc *grpc.ClientConn) (*token, error) {
	t, err := l.tokens.Get(ctx, cc)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // as the client library expects it
	}
	return t, err
}

// try logs in. If the new token is older than the last one, the server was restored from an older copy,
// and the calls with the last token end.
func (l *login) try(ctx context.Context, cc *grpc.ClientConn) (*token, error) {
	if err := l.refused.Err(); err != nil {
		return nil, err
	}
	resp, err := etcdserverpb.NewAuthClient(cc).Authenticate(ctx, &etcdserverpb.AuthenticateRequest{Name: l.name, Password: l.password()})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled) {
		resp, err = &etcdserverpb.AuthenticateResponse{}, nil
	}
	if err == nil || errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed) {
		l.refused.Note(err)
	}
	if err != nil {
		return nil, err
	}
	t := newToken(resp.Token)
	if old := l.newest.Swap(t); old != nil && old.raftIndex > t.raftIndex {
		old.end()
	}
	return t, nil
}

// checkAge replaces a token that is newer than the server, and ends the calls with it. A token of
// etcd carries the number of the raft entry at which it was made. A member does not answer calls
// with the token before it has applied that entry. A server that was restored from an older copy
// may need days to reach that number.
func (l *login) checkAge(t *token, cc *grpc.ClientConn) {
	if t.raftIndex == 0 || t.dropped.Load() || t.checking.Swap(true) {
		return
	}
	l.calls.Go(func() {
		defer t.checking.Store(false)
		if t.seemsNewer(l.calls.Ctx, cc) {
			t.dropped.Store(true)
			if _, err := l.get(l.calls.Ctx, cc); err != nil {
				t.end() // after a successful login, try has compared the tokens
			}
		}
	})
}

// seemsNewer reports whether the server has not reached the token's raft entry, or answers requests
// without the token and leaves one with it unanswered.
func (t *token) seemsNewer(ctx context.Context, cc *grpc.ClientConn) bool {
	appliedIndex := func(ctx context.Context) (applied uint64, err error) {
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		var answer etcdserverpb.StatusResponse
		err = cc.Invoke(ctx, etcdserverpb.Maintenance_Status_FullMethodName, &etcdserverpb.StatusRequest{}, &answer)
		return answer.RaftAppliedIndex, err
	}
	applied, err := appliedIndex(ctx)
	if err == nil {
		return applied < t.raftIndex
	}
	if !refusedToken(err) {
		return false
	}
	// Since etcd 3.7 a server returns its state only to users that have logged in.
	ctx, end := t.with(ctx)
	defer end()
	_, err = appliedIndex(ctx)
	return status.Code(err) == codes.DeadlineExceeded || refusedToken(err)
}

// refusedToken reports whether a call failed because of its token, before anything was applied.
func refusedToken(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}

func (l *login) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method == etcdserverpb.Auth_Authenticate_FullMethodName || method == etcdserverpb.Maintenance_Status_FullMethodName {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	for again := false; ; again = true {
		t, err := l.get(ctx, cc)
		if err != nil {
			return err
		}
		bound, end := t.with(ctx)
		overdue := time.AfterFunc(answerTimeout, func() { l.checkAge(t, cc) })
		err = invoke(bound, method, req, reply, cc, opts...)
		overdue.Stop()
		end()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			l.checkAge(t, cc)
		case t.over.Err() != nil && !refusedToken(err):
			return errNewerToken // a write may have been applied
		}
		if !refusedToken(err) {
			return err
		}
		t.dropped.Store(true)
		if again {
			return err
		}
	}
}

func (l *login) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	t, err := l.get(ctx, cc)
	if err != nil {
		return nil, err
	}
	bound, end := t.with(ctx)
	context.AfterFunc(bound, end) // the stream ends with ctx
	s, err := open(bound, desc, cc, method, opts...)
	if err != nil {
		end()
		return nil, err
	}
	return &loginStream{s, l, t, cc}, nil
}

// loginStream drops the token when the server refuses it: the stream that replaces this one logs
// in. A stream that this client has ended may have been silent because of its token.
type loginStream struct {
	grpc.ClientStream
	l     *login
	token *token
	cc    *grpc.ClientConn
}

func (s *loginStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	w, ok := m.(*etcdserverpb.WatchResponse)
	// etcd 3.4 refuses a watch because of its token with the error of a missing right.
	if refusedToken(err) || err == nil && ok && w.Created && w.Canceled {
		s.token.dropped.Store(true)
	} else if err != nil && s.Context().Err() != nil {
		s.l.checkAge(s.token, s.cc)
	}
	return err
}

// close ends logins and checks, and waits for their end.
func (l *login) close() {
	l.calls.Stop()
	l.calls.Cancel()
	l.calls.Tasks.Wait()
}

// open opens a client for a store of its own. A wrong password is an error at once; an unreachable
// server is no error.
func (l *login) open(ctx context.Context, cfg clientv3.Config) (*clientv3.Client, error) {
	if l.name != "" {
		cfg.DialOptions = append(cfg.DialOptions, l.dialOptions()...)
	}
	client, err := clientv3.New(cfg)
	if err != nil || l.name == "" {
		return client, err
	}
	bounded, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if _, err = l.get(bounded, client.ActiveConnection()); err != nil && (errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed) || ctx.Err() != nil) {
		l.close()
		_ = client.Close()
		return nil, err
	}
	return client, nil
}
