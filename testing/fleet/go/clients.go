package main

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

var background = context.Background()

func connect(url string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	// By default it has ten connections for each processor, and more tasks wait for a while and fail.
	options.PoolSize = 4096
	client := redis.NewClient(options)
	return client, client.Ping(background).Err()
}

// --- redsync: on one server, or a majority of several; option `delay=MS` between two polls, 50 to 250 by default

type redsyncLibrary struct {
	*redsync.Redsync
	waiting []redsync.Option
}

func newRedsync(urls []string, options map[string]int) (library, error) {
	var pools []redsyncredis.Pool
	for _, url := range urls {
		client, err := connect(url)
		if err != nil {
			return nil, err
		}
		pools = append(pools, goredis.NewPool(client))
	}
	// By default a waiter gives up after 32 polls; here it waits until it is served.
	waiting := []redsync.Option{redsync.WithTries(math.MaxInt)}
	if delay, ok := options["delay"]; ok {
		waiting = append(waiting, redsync.WithRetryDelay(time.Duration(delay)*time.Millisecond))
	}
	return redsyncLibrary{redsync.New(pools...), waiting}, nil
}

func (l redsyncLibrary) acquire(name string, ttl time.Duration) (held, error) {
	mutex := l.NewMutex(name, append([]redsync.Option{redsync.WithExpiry(ttl)}, l.waiting...)...)
	return redsyncHeld{mutex}, mutex.Lock()
}

func (l redsyncLibrary) try(name string, ttl time.Duration) (held, error) {
	mutex := l.NewMutex(name, redsync.WithExpiry(ttl))
	err := mutex.TryLock()
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return nil, nil
	}
	return redsyncHeld{mutex}, err
}

type redsyncHeld struct{ *redsync.Mutex }

func (h redsyncHeld) release() error {
	ok, err := h.Unlock()
	if err == nil && !ok {
		err = errors.New("not held")
	}
	return err
}

func (h redsyncHeld) extend(time.Duration) (bool, error) { return h.Extend() }

func (h redsyncHeld) isHeld() (*bool, error) {
	is := time.Now().Before(h.Until())
	return &is, nil
}

// --- bsm/redislock; option `backoff=MS` between two polls, 100 by default

type redislockLibrary struct {
	*redislock.Client
	backoff time.Duration
}

func newRedislock(urls []string, options map[string]int) (library, error) {
	client, err := connect(urls[0])
	backoff := time.Duration(cmp.Or(options["backoff"], 100)) * time.Millisecond
	return redislockLibrary{redislock.New(client), backoff}, err
}

func (l redislockLibrary) acquire(name string, ttl time.Duration) (held, error) {
	// Without a deadline of its own the context gets that of the lease.
	waiting, cancel := context.WithTimeout(background, time.Hour)
	defer cancel()
	options := redislock.Options{RetryStrategy: redislock.LinearBackoff(l.backoff)}
	lock, err := l.Obtain(waiting, name, ttl, &options)
	return redislockHeld{lock}, err
}

func (l redislockLibrary) try(name string, ttl time.Duration) (held, error) {
	lock, err := l.Obtain(background, name, ttl, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, nil
	}
	return redislockHeld{lock}, err
}

type redislockHeld struct{ *redislock.Lock }

func (h redislockHeld) release() error { return h.Release(background) }

func (h redislockHeld) extend(ttl time.Duration) (bool, error) {
	err := h.Refresh(background, ttl, nil)
	return err == nil, err
}

// It asks the server.
func (h redislockHeld) isHeld() (*bool, error) {
	rest, err := h.TTL(background)
	is := rest > 0
	return &is, err
}

// --- rueidislock: a majority of keys of one server; options `majority`, 2 by default, `next=MS`, the bound of a
// request after which the next key is tried, 20 by default, and `again=MS`, after which a waiter asks anew, never by
// default

type rueidislockLibrary struct {
	option rueidislock.LockerOption
	again  time.Duration
	mutex  sync.Mutex
	byTTL  map[time.Duration]rueidislock.Locker
}

func newRueidislock(urls []string, options map[string]int) (library, error) {
	client, err := rueidis.ParseURL(urls[0])
	if err != nil {
		return nil, err
	}
	l := &rueidislockLibrary{byTTL: map[time.Duration]rueidislock.Locker{}}
	l.option.ClientOption = client
	l.option.KeyMajority = int32(options["majority"])
	l.option.TryNextAfter = time.Duration(options["next"]) * time.Millisecond
	l.again = time.Duration(options["again"]) * time.Millisecond
	_, err = l.locker(30 * time.Second)
	return l, err
}

// The lease is one of the whole locker.
func (l *rueidislockLibrary) locker(ttl time.Duration) (rueidislock.Locker, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if known, ok := l.byTTL[ttl]; ok {
		return known, nil
	}
	option := l.option
	option.KeyValidity = ttl
	locker, err := rueidislock.NewLocker(option)
	l.byTTL[ttl] = locker
	return locker, err
}

// Its waiters may wait for ever for a free lock. The goroutine of a failed attempt takes the name's gate away if it
// runs before `try` has counted the failure, and no notification reaches the waiter any more. A new wait has a new gate.
func (l *rueidislockLibrary) acquire(name string, ttl time.Duration) (held, error) {
	if l.again == 0 {
		return l.acquireWith(background, name, ttl)
	}
	for {
		one, err := l.acquireUntil(name, ttl, time.Now().Add(l.again))
		if one != nil || err != nil {
			return one, err
		}
	}
}

func (l *rueidislockLibrary) acquireUntil(name string, ttl time.Duration, end time.Time) (held, error) {
	// A deadline would end the lease, too.
	waiting, stop := context.WithCancel(background)
	timer := time.AfterFunc(time.Until(end), stop)
	one, err := l.acquireWith(waiting, name, ttl)
	if timer.Stop() {
		return one, err
	}
	if err == nil {
		err = one.release()
	} else if errors.Is(err, context.Canceled) {
		err = nil
	}
	return nil, err
}

func (l *rueidislockLibrary) acquireWith(waiting context.Context, name string, ttl time.Duration) (held, error) {
	locker, err := l.locker(ttl)
	if err != nil {
		return nil, err
	}
	holding, cancel, err := locker.WithContext(waiting, name)
	return rueidislockHeld{holding, cancel}, err
}

func (l *rueidislockLibrary) try(name string, ttl time.Duration) (held, error) {
	locker, err := l.locker(ttl)
	if err != nil {
		return nil, err
	}
	holding, cancel, err := locker.TryWithContext(background, name)
	if errors.Is(err, rueidislock.ErrNotLocked) {
		return nil, nil
	}
	return rueidislockHeld{holding, cancel}, err
}

// It renews by itself until it is cancelled, and its context ends with the lock.
type rueidislockHeld struct {
	holding context.Context
	cancel  context.CancelFunc
}

func (h rueidislockHeld) release() error {
	h.cancel()
	return nil
}

func (h rueidislockHeld) extend(time.Duration) (bool, error) { return false, errCannot }

func (h rueidislockHeld) isHeld() (*bool, error) {
	is := h.holding.Err() == nil
	return &is, nil
}
