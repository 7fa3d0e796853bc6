// Locks with go-zookeeper's Lock as the lines on stdin say, and answers each with a line on stdout.
//
// The first line has the servers, the path and, if it is not 10 s, the session timeout in milliseconds. `acquire`
// ignores its limit: the library has none. After `watch`, SUSPENDED is a line when the connection has ended, and
// LOST when the session has expired.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	if !lines.Scan() {
		return
	}
	words := append(strings.Fields(lines.Text()), "10000")
	timeout, err := strconv.Atoi(words[2])
	fail(err)
	client, events, err := zk.Connect(strings.Split(words[0], ","), time.Duration(timeout)*time.Millisecond, zk.WithLogInfo(false))
	fail(err)
	var isWatched atomic.Bool
	go report(events, &isWatched)
	lock := zk.NewLock(client, words[1], zk.WorldACL(zk.PermAll))
	for lines.Scan() {
		switch verb, _, _ := strings.Cut(lines.Text(), " "); verb {
		case "acquire":
			fail(lock.Lock())
			fmt.Println("held")
		case "release":
			fail(lock.Unlock())
			fmt.Println("done")
		case "watch":
			isWatched.Store(true)
			fmt.Println("done")
		}
	}
	client.Close()
}

// report says what the program is told of its session, once that is watched.
func report(events <-chan zk.Event, isWatched *atomic.Bool) {
	said := map[zk.State]string{zk.StateDisconnected: "SUSPENDED", zk.StateExpired: "LOST"}
	for event := range events {
		if word := said[event.State]; event.Type == zk.EventSession && word != "" && isWatched.Load() {
			fmt.Println(word)
		}
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "go-zookeeper:", err)
		os.Exit(1)
	}
}
