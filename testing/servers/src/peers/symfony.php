<?php

// Locks with Symfony's Lock as the lines on stdin say, and answers each with a line on stdout.
//
// Started with the port of the server and the name of the lock; ends with its stdin. Without arguments it
// only loads the libraries.

require 'Symfony/Component/Lock/autoload.php';

use Symfony\Component\Lock\LockFactory;
use Symfony\Component\Lock\Store\RedisStore;

if ($argc === 1) {
    exit(class_exists(RedisStore::class) && class_exists(Redis::class) ? 0 : 1);
}
[, $port, $name] = $argv;
$redis = new Redis();
$redis->connect('127.0.0.1', (int) $port);
$factory = new LockFactory(new RedisStore($redis));
$lock = null;

while (($line = fgets(STDIN)) !== false) {
    [$verb, $lease] = explode(' ', trim($line)) + [1 => 0];
    if ($verb === 'try') {
        $lock = $factory->createLock($name, (float) $lease, false);
        echo $lock->acquire() ? 'held' : 'contended', "\n";
    } else {
        $lock->release();
        echo "done\n";
    }
}
