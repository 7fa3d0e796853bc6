<?php

// A worker that locks with Laravel's cache. Its leases are whole seconds.

require 'Illuminate/Cache/autoload.php';
require 'Illuminate/Redis/autoload.php';
require __DIR__ . '/worker.php';

use Illuminate\Cache\RedisStore;
use Illuminate\Redis\RedisManager;

class Laravel
{
    private $store;

    public function __construct($host, $port)
    {
        $server = ['host' => $host, 'port' => $port, 'database' => 0];
        $manager = new RedisManager(null, 'phpredis', ['default' => $server]);
        $manager->connection()->ping();
        $this->store = new RedisStore($manager, '');
    }

    public function acquire($name, $ttlMs)
    {
        $lock = $this->store->lock($name, max(1, intdiv($ttlMs, 1000)));
        $lock->block(1000000);
        return $lock;
    }

    public function try($name, $ttlMs)
    {
        $lock = $this->store->lock($name, max(1, intdiv($ttlMs, 1000)));
        return $lock->get() ? $lock : null;
    }

    public function release($lock)
    {
        if (!$lock->release()) {
            throw new Exception('not held');
        }
    }

    public function extend($lock, $ttlMs)
    {
        throw new Cannot('the library has no such call');
    }

    public function isHeld($lock)
    {
        return null;
    }
}

serve(fn ($host, $port) => new Laravel($host, $port), 'php-illuminate-cache');
