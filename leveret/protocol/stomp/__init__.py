"""STOMP 1.0, 1.1 and 1.2 as data: frames, their headers, and how both are written.

Bytes become values and values become bytes; nothing here knows a broker, a session, or AMQP. `decoder` finds frames in
bytes, `encoder` makes bytes of frames, `escaping` has the escapes of each version, `frames` what both share. Every
package may import it.
"""
