"""The same conversations with RabbitMQ 3.10.8 and with Leveret, and what they answered differently.

A conversation is text, in the language of `tests.support.machines`: what clients send, line by line. `a1` is channel 1
of client a, who is logged in when it first says something. Besides the methods by name there are

    a1 publish exchange='x' routing_key='k' body='abc' properties={'priority': 3}      a whole message
    a frame 1, 1, b'...'    a bytes b'...'    a1 header size=3    a1 body 'abc'        pieces of one, right or wrong
    a open user='limited' heartbeat=1           log in otherwise than as guest; `a connect` does not log in at all
    a capabilities                              those in the server's greeting
    a lost                                      the socket is closed without a word
    a1 publish routing_key='q' && a1 basic.get queue='q'                               both in one write
    wait 300                                    milliseconds pass; what comes meanwhile is noted
    ctl set_policy p ^q '{"max-length": 1}'     rabbitmqctl or leveretctl, in the vhost of the conversation

    = x-message-ttl of $value, $type            the title
    * value: 0 | -1 | 'a' | ('b', 5)            one conversation for each value; ('b', 5) is a five of field type b
    * type: classic | quorum

What comes back is noted below the line that was sent. Compared is all of it: methods with every field, properties
with the types of all headers, bodies, order. Only what differs from run to run is made the same: names that the server
makes up count 1, 2, 3; times of now are `now`; answers within one step are ordered by client and channel, as channels
run side by side in RabbitMQ; confirms are told one by one at the end of a step, since it is chance how many go into one
frame.

**When is an answer complete?** Nobody says. After each line every open channel is asked something that has no effect
(`access.request`, a fossil that both answer in order); so whatever the channel itself has to say has been said. What
comes by way of queues comes later, in RabbitMQ: there a silence is awaited. Leveret is measured against what RabbitMQ
answered: as many answers are waited for, and more of them would be found at the next line or at the end.

RabbitMQ's answers are kept in `recorded`, so that the tests need none (`test_compare`). Differences that are meant are
listed with reasons in docs/differences.md, those that are not in `pending.txt`; either list may only name what does
differ.

    make compare                                run both, print all differences but the meant ones
    python -m tests.system.compare ttl qos             these topics only
    python -m tests.system.compare --recorded ttl      Leveret alone, against RabbitMQ's recorded answers
    make compare RECORD=1                       write the records anew, all held twice to see that they are steady
    python -m tests.system.compare --recorded --prune  take from pending.txt what differs no more
"""
