<?php

// A worker that locks with Symfony's Lock and its RedisStore, which keeps a sorted set.

require 'Symfony/Component/Lock/autoload.php';
require __DIR__ . '/worker.php';

use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\RedisStore;

class Symfony
{
    private $factory;

    public function __construct($host, $port)
    {
        $redis = new Redis();
        $redis->connect($host, $port);
        $this->factory = new LockFactory(new RedisStore($redis));
    }

    public function acquire($name, $ttlMs)
    {
        $lock = $this->factory->createLock($name, $ttlMs / 1000, false);
        $lock->acquire(true);
        return $lock;
    }

    public function try($name, $ttlMs)
    {
        $lock = $this->factory->createLock($name, $ttlMs / 1000, false);
        return $lock->acquire() ? $lock : null;
    }

    public function release($lock)
    {
        $lock->release();
    }

    public function extend($lock, $ttlMs)
    {
        $lock->refresh($ttlMs / 1000);
        return true;
    }

    // It asks the server.
    public function isHeld($lock)
    {
        return $lock->isAcquired();
    }
}

serve(fn ($host, $port) => new Symfony($host, $port), 'php-symfony-lock');
