"""The world the machines run in during tests: virtual time, a hostile network, a disk that forgets."""
