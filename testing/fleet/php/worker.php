<?php

// The worker protocol, for any lock library of PHP: testing/bench/PROTOCOL.md lists the commands.
//
// A library has `acquire($name, $ttlMs)`, which waits and returns the held lock, `try($name, $ttlMs)`, which returns
// null if the lock is not free, `release($held)`, `extend($held, $ttlMs)` and `isHeld($held)`. A call that it does not
// have throws Cannot. Without a URL, a worker prints the version of the library.

class Cannot extends Exception
{
}

class Worker
{
    private $library;
    private $ttlMs = 30000;
    private $held = [];

    public function __construct($library)
    {
        $this->library = $library;
    }

    public function ttl($ms)
    {
        $this->ttlMs = (int) $ms;
        return new stdClass();
    }

    public function hold($name)
    {
        $asked = hrtime(true);
        $this->held[$name] = $this->library->acquire($name, $this->ttlMs);
        return ['asked' => $asked, 'acquired' => hrtime(true), 'token' => null];
    }

    public function try($name)
    {
        $asked = hrtime(true);
        $held = $this->library->try($name, $this->ttlMs);
        if ($held !== null) {
            $this->held[$name] = $held;
        }
        return ['held' => $held !== null, 'asked' => $asked, 'acquired' => hrtime(true)];
    }

    public function free($name)
    {
        $letGo = hrtime(true);
        $this->library->release($this->held[$name]);
        return ['let_go' => $letGo, 'freed' => hrtime(true)];
    }

    public function extend($name, $ms)
    {
        return ['extended' => $this->library->extend($this->held[$name], (int) $ms)];
    }

    public function held($name)
    {
        return ['held' => $this->library->isHeld($this->held[$name])];
    }

    // The read and the write are two steps, so that an overlap of two holders loses an update.
    public function count($name, $ms, $holdUs, $pauseUs, $file)
    {
        $end = hrtime(true) + $ms * 1000000;
        $grants = [];
        while (hrtime(true) < $end) {
            $held = $this->library->acquire($name, $this->ttlMs);
            $acquired = hrtime(true);
            $seen = (int) file_get_contents($file);
            usleep((int) $holdUs);
            file_put_contents($file, (string) ($seen + 1));
            $letGo = hrtime(true);
            $this->library->release($held);
            $grants[] = [$acquired, $letGo];
            usleep((int) $pauseUs);
        }
        return ['grants' => $grants];
    }

    public function keep($prefix, $count)
    {
        throw new Cannot('it renews nothing by itself');
    }
}

// Connects the library with `$make($host, $port)`, and serves it. `$package` is Debian's.
function serve($make, $package)
{
    global $argv;
    $url = end($argv);
    if (strpos($url, ':') === false) {
        $version = shell_exec("dpkg-query --show --showformat '\${Version}' $package");
        echo preg_replace('/[+-].*/', '', $version), "\n";
        return;
    }
    $worker = new Worker($make(parse_url($url, PHP_URL_HOST), parse_url($url, PHP_URL_PORT)));
    echo json_encode(['ready' => 1]), "\n";
    while (($line = fgets(STDIN)) !== false) {
        $words = explode(' ', trim($line));
        $command = array_shift($words);
        try {
            $answer = $worker->$command(...$words);
        } catch (Cannot $why) {
            $answer = ['cannot' => $why->getMessage()];
        } catch (Throwable $error) {
            $answer = ['error' => get_class($error) . ': ' . $error->getMessage()];
        }
        echo json_encode($answer), "\n";
    }
}
