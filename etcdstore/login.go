package etcdstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// login logs a user in for a client of Open, when the first token is needed. The client library
// would log in for each stream, and its constructor would fail while no server is up.
type login struct {
	name, password string

	mu     sync.Mutex
	valid  bool
	token  string // empty where the server has authentication switched off
	trying *loginTry
	// checking: checkAge is under way.
	checking bool
}

type loginTry struct {
	done chan struct{}
	err  error
}

// loginTimeout limits a login, which queues at the server if many clients log in at once.
const loginTimeout = 15 * time.Second

func (l *login) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(l.unary), grpc.WithChainStreamInterceptor(l.stream)}
}

// get returns the token, and logs in if there is none. The login continues when ctx ends, as other
// calls may wait for it, and an abandoned login has cost the server its time anyway.
func (l *login) get(ctx context.Context, cc *grpc.ClientConn) (string, error) {
	for {
		l.mu.Lock()
		if l.valid {
			defer l.mu.Unlock()
			return l.token, nil
		}
		try := l.trying
		if try == nil {
			try = &loginTry{done: make(chan struct{})}
			l.trying = try
			go l.try(try, cc)
		}
		l.mu.Unlock()
		select {
		case <-try.done:
			if try.err != nil {
				return "", try.err
			}
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func (l *login) try(try *loginTry, cc *grpc.ClientConn) {
	ctx, cancel := context.WithTimeout(context.Background(), loginTimeout)
	defer cancel()
	resp, err := etcdserverpb.NewAuthClient(cc).Authenticate(ctx, &etcdserverpb.AuthenticateRequest{Name: l.name, Password: l.password})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled) {
		resp, err = &etcdserverpb.AuthenticateResponse{}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trying = nil
	if try.err = err; err == nil {
		l.valid, l.token = true, resp.Token
	}
	close(try.done)
}

// drop forgets a token that the server refuses.
func (l *login) drop(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token == token {
		l.valid = false
	}
}

// checkAge drops a token that is younger than the server. A token of etcd carries the number of the
// raft entry at which it was made, and a member leaves calls with it unanswered until it has applied
// as many. A server that was restored from an older copy may take days to get there.
func (l *login) checkAge(token string, cc *grpc.ClientConn) {
	made, err := strconv.ParseUint(token[strings.LastIndexByte(token, '.')+1:], 10, 64)
	if err != nil {
		return // a JWT, or none
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.checking || !l.valid || l.token != token {
		return
	}
	l.checking = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		defer cancel()
		var status etcdserverpb.StatusResponse
		err := cc.Invoke(ctx, etcdserverpb.Maintenance_Status_FullMethodName, &etcdserverpb.StatusRequest{}, &status)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.checking = false
		if err == nil && status.RaftAppliedIndex < made && l.token == token {
			l.valid = false
		}
	}()
}

// refusedToken reports whether a call failed because of its token, before anything was applied.
func refusedToken(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}

func with(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
}

func (l *login) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method == etcdserverpb.Auth_Authenticate_FullMethodName || method == etcdserverpb.Maintenance_Status_FullMethodName {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	for again := false; ; again = true {
		token, err := l.get(ctx, cc)
		if err != nil {
			return err
		}
		err = invoke(with(ctx, token), method, req, reply, cc, opts...)
		if err != nil && ctx.Err() != nil {
			l.checkAge(token, cc)
		}
		if !refusedToken(err) {
			return err
		}
		l.drop(token)
		if again {
			return err
		}
	}
}

func (l *login) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	token, err := l.get(ctx, cc)
	if err != nil {
		return nil, err
	}
	s, err := open(with(ctx, token), desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &loginStream{s, l, token}, nil
}

// loginStream drops the token when the server refuses it: the stream that replaces this one logs
// in.
type loginStream struct {
	grpc.ClientStream
	l     *login
	token string
}

func (s *loginStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	w, ok := m.(*etcdserverpb.WatchResponse)
	// etcd 3.4 refuses a watch because of its token with the error of a missing right.
	if refusedToken(err) || err == nil && ok && w.Created && w.Canceled {
		s.l.drop(s.token)
	}
	return err
}

// open opens a client for a store of its own. A wrong password is an error at once; an unreachable
// server is none.
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
		_ = client.Close()
		return nil, err
	}
	return client, nil
}
