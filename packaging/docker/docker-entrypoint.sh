#!/bin/sh
# The entry point of the image, with the conventions of RabbitMQ's: as root it gives the data to the user rabbitmq and
# goes on as that user; variables that RabbitMQ's image refuses are refused here, too.
set -eu

data="${RABBITMQ_DATA_DIR:-/var/lib/rabbitmq}"

case "${1:-}" in
    rabbitmq* | leveret*)
        if [ "$(id -u)" = 0 ]; then
            if [ "$1" = rabbitmq-server ]; then
                find "$data" ! -user rabbitmq -exec chown rabbitmq:rabbitmq '{}' +
            fi
            exec setpriv --reuid=rabbitmq --regid=rabbitmq --init-groups "$0" "$@"
        fi
        ;;
esac

refused=""
for name in $(env | sed -n 's/^\(RABBITMQ_[A-Z_]*\)=.*/\1/p'); do
    case "$name" in
        RABBITMQ_DEFAULT_PASS_FILE | RABBITMQ_DEFAULT_USER_FILE | RABBITMQ_MANAGEMENT_SSL_* | RABBITMQ_SSL_* | \
            RABBITMQ_VM_MEMORY_HIGH_WATERMARK)
            echo >&2 "error: $name is set but deprecated"
            refused=yes
            ;;
    esac
done
if [ -n "$refused" ]; then
    echo >&2 'error: use a configuration file instead: /etc/rabbitmq/conf.d/*.conf'
    exit 1
fi

# A cookie that only its owner may read, as the node insists on. A mounted secret may be open to others, and read-only.
cookie="$data/.erlang.cookie"
if [ "${1:-}" = rabbitmq-server ] && [ -O "$cookie" ]; then
    chmod 600 "$cookie" || true
fi

exec "$@"
