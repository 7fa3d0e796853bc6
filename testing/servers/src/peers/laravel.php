<?php

// Locks with Laravel's cache as the lines on stdin say, and answers each with a line on stdout.
//
// Started with the port of the server, the name of the lock and the prefix of the cache; ends with its
// stdin. Without arguments it only loads the libraries.

require 'Illuminate/Cache/autoload.php';
require 'Illuminate/Redis/autoload.php';

use Illuminate\Cache\RedisStore;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Illuminate\Redis\RedisManager;

class Peer
{
    private $redis;
    private $store;
    private $name;
    private $lock;

    public function __construct($port, $name, $prefix = '')
    {
        $server = ['host' => '127.0.0.1', 'port' => (int) $port, 'database' => 0];
        $manager = new RedisManager(null, 'phpredis', ['default' => $server]);
        $this->redis = $manager->connection();
        $this->store = new RedisStore($manager, $prefix);
        $this->name = $name;
    }

    // A lease of 0 seconds is one without end, as it is by default.
    public function try($lease)
    {
        $this->lock = $this->store->lock($this->name, (int) $lease);
        return $this->lock->get() ? 'held' : 'contended';
    }

    public function acquire($lease, $patience)
    {
        $this->lock = $this->store->lock($this->name, (int) $lease);
        try {
            return $this->lock->block((int) $patience) ? 'held' : 'contended';
        } catch (LockTimeoutException $error) {
            return 'contended';
        }
    }

    public function release()
    {
        return $this->lock->release() ? 'done' : 'not owned';
    }

    // Ends the hold, whoever has it.
    public function force()
    {
        $this->lock->forceRelease();
        return 'done';
    }

    // Adds to a counter in two steps, each time under the lock, and pauses without it.
    public function count($rounds, $lease, $patience, $pause)
    {
        $longest = 0;
        for ($i = 0; $i < $rounds; $i++) {
            $began = hrtime(true);
            $answer = $this->acquire($lease, $patience);
            $waited = (hrtime(true) - $began) / 1e6;
            if ($answer !== 'held') {
                return sprintf('gave up after %.1f s', $waited / 1000);
            }
            $longest = max($longest, $waited);
            $seen = (int) $this->redis->get('counter');
            usleep(1000);
            $this->redis->set('counter', $seen + 1);
            $this->redis->rpush('served', 'Laravel');
            $this->release();
            usleep((int) ($pause * 1e6));
        }
        return sprintf('waited %.0f', $longest);
    }
}

if ($argc === 1) {
    exit(class_exists(RedisStore::class) && class_exists(RedisManager::class) && class_exists(Redis::class) ? 0 : 1);
}
$peer = new Peer(...array_slice($argv, 1));
while (($line = fgets(STDIN)) !== false) {
    $words = explode(' ', trim($line));
    $verb = array_shift($words);
    echo $peer->$verb(...$words), "\n";
}
