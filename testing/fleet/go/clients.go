package main

import (
	"context"
	"errors"
	"math"
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
	client := redis.NewClient(options)
	return client, client.Ping(background).Err()
}

// --- redsync: on one server, or a majority of several

type redsyncLibrary struct{ *redsync.Redsync }

func newRedsync(urls []string, _ map[string]int) (library, error) {
	var pools []redsyncredis.Pool
	for _, url := range urls {
		client, err := connect(url)
		if err != nil {
			return nil, err
		}
		pools = append(pools, goredis.NewPool(client))
	}
	return redsyncLibrary{redsync.New(pools...)}, nil
}

func (l redsyncLibrary) acquire(name string, ttl time.Duration) (held, error) {
	// By default a waiter gives up after 32 polls; here it waits until it is served.
	mutex := l.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(math.MaxInt))
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

// --- bsm/redislock

type redislockLibrary struct{ *redislock.Client }

func newRedislock(urls []string, _ map[string]int) (library, error) {
	client, err := connect(urls[0])
	return redislockLibrary{redislock.New(client)}, err
}

func (l redislockLibrary) acquire(name string, ttl time.Duration) (held, error) {
	// Without a deadline of its own the context gets that of the lease.
	waiting, cancel := context.WithTimeout(background, time.Hour)
	defer cancel()
	options := redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
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

// --- rueidislock: a majority of keys of one server; option `majority`, 2 by default

type rueidislockLibrary struct {
	url      string
	majority int32
	byTTL    map[time.Duration]rueidislock.Locker
}

func newRueidislock(urls []string, options map[string]int) (library, error) {
	l := rueidislockLibrary{urls[0], int32(options["majority"]), map[time.Duration]rueidislock.Locker{}}
	_, err := l.locker(30 * time.Second)
	return l, err
}

// The lease is one of the whole locker.
func (l rueidislockLibrary) locker(ttl time.Duration) (rueidislock.Locker, error) {
	if known, ok := l.byTTL[ttl]; ok {
		return known, nil
	}
	client, err := rueidis.ParseURL(l.url)
	if err != nil {
		return nil, err
	}
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: client, KeyMajority: l.majority, KeyValidity: ttl,
	})
	l.byTTL[ttl] = locker
	return locker, err
}

func (l rueidislockLibrary) acquire(name string, ttl time.Duration) (held, error) {
	locker, err := l.locker(ttl)
	if err != nil {
		return nil, err
	}
	holding, cancel, err := locker.WithContext(background, name)
	return rueidislockHeld{holding, cancel}, err
}

func (l rueidislockLibrary) try(name string, ttl time.Duration) (held, error) {
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
