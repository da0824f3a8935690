"""Scenarios for the lab: what went wrong in other Rafts, or could in this one. See `lab.py` for the words.

The seeds of the simulation would find most of these, but not all, and not soon: Figure 8 needs four leaders in the
right order.
"""

from __future__ import annotations

from typing import Final

# Name: (options, script).
SCENARIOS: Final[dict[str, tuple[dict[str, int], str]]] = {}


def scenario(name: str, script: str, **options: int) -> None:
    assert name not in SCENARIOS
    SCENARIOS[name] = (options, script)


# Elections

scenario(
    "a majority elects, and the others follow",
    """
    voters a b c
    campaign a
    expect a role=pre_candidate term=0
    settle
    expect a role=leader term=1 leader=a commit=1
    expect b role=follower term=1 leader=a vote=a commit=1
    expect c leader=a vote=a
    """,
)
scenario(
    "one voter alone elects itself",
    """
    voters a
    campaign a
    expect a role=leader term=1 vote=a commit=1 applied=1
    """,
)
scenario(
    "a timeout begins an election, and not before",
    """
    voters a b c
    tick a 9
    expect a role=follower
    tick a 1
    expect a role=pre_candidate
    expect a sent VoteRequest pre=True term=1
    """,
    election_ticks=10,
)
scenario(
    "a vote is given once a term, and remembered over a crash",
    """
    voters a b c
    a gets VoteRequest from b term=1
    expect a sent VoteResponse granted=True to=b
    expect a vote=b
    crash a
    a gets VoteRequest from c term=1 last_index=9 last_term=0
    expect a sent VoteResponse granted=False to=c
    a gets VoteRequest from b term=1   # The answer may have been lost.
    expect a sent VoteResponse granted=True to=b
    """,
)
scenario(
    "the vote is on disk before the answer leaves",
    """
    voters a b c
    hold a
    a gets VoteRequest from b term=1
    expect a sent nothing
    write a
    expect a later VoteResponse granted=True
    """,
)
scenario(
    "a candidate asks for votes only when its own is on disk",
    """
    voters a b c
    campaign a
    hold a
    a gets VoteResponse from b term=1 pre=True
    expect a role=candidate
    expect a sent nothing
    write a
    expect a later VoteRequest pre=False term=1
    """,
)
scenario(
    "no vote for a candidate with an older log",
    """
    voters a b c
    log a 1 2 2
    a gets VoteRequest from b term=3 last_index=9 last_term=1   # Longer, but older.
    expect a sent VoteResponse granted=False term=3
    a gets VoteRequest from b term=4 last_index=2 last_term=2   # As new, but shorter.
    expect a sent VoteResponse granted=False
    a gets VoteRequest from b term=5 last_index=3 last_term=2
    expect a sent VoteResponse granted=True
    """,
)
scenario(
    "a pre-vote changes nothing at the one who is asked",
    """
    voters a b c
    a gets VoteRequest from b term=7 pre=True
    expect a sent VoteResponse granted=True term=7 pre=True
    expect a term=0 vote=none
    a gets VoteRequest from c term=7 pre=True
    expect a sent VoteResponse granted=True   # It is only a question, so both hear yes.
    """,
)
scenario(
    "nobody votes while the leader is heard of",
    """
    voters a b c
    a gets Heartbeat from b term=1
    a gets VoteRequest from c term=5 last_index=9 last_term=4
    expect a term=1
    expect a sent nothing
    a gets VoteRequest from c term=5 last_index=9 last_term=4 pre=True
    expect a sent nothing
    """,
)
scenario(
    "a node that was cut off does not depose the leader when it returns",
    """
    voters a b c
    elect a
    cut c
    quiet a b c 40
    expect c role=pre_candidate term=1
    heal
    quiet a b c 5
    expect a role=leader term=1
    expect c role=follower leader=a
    """,
)
scenario(
    "pre-votes of an older pre-election are not counted",
    """
    voters a b c
    term a 5
    campaign a
    a gets VoteResponse from b term=5 pre=True
    expect a role=pre_candidate
    a gets VoteResponse from b term=6 pre=True
    expect a role=candidate term=6
    """,
)
scenario(
    "votes of a pre-election do not count in the election",
    """
    voters a b c
    campaign a
    a gets VoteResponse from b term=1 pre=True
    expect a role=candidate term=1
    a gets VoteResponse from c term=1 pre=True
    expect a role=candidate
    a gets VoteResponse from c term=1
    expect a role=leader
    """,
)
scenario(
    "late votes do not count in the next pre-election",
    """
    voters a b c
    campaign a
    a gets VoteResponse from b term=1 pre=True
    expect a role=candidate term=1
    tick a 10
    expect a role=pre_candidate
    a gets VoteResponse from b term=1
    expect a role=pre_candidate
    """,
    election_ticks=10,
)
scenario(
    "votes of those who are no voters do not count",
    """
    voters a b c learners d
    campaign a
    a gets VoteResponse from d term=1 pre=True
    expect a role=pre_candidate
    a gets VoteResponse from x term=1 pre=True
    expect a role=pre_candidate
    """,
)
scenario(
    "a refused pre-vote tells a newer term, and then the election succeeds",
    """
    voters a b c
    term b 9
    term c 9
    campaign a
    settle
    expect a term=9 role=follower
    elect a
    expect a term=10
    """,
)
scenario(
    "a leader of an older term is told, or a node ahead would be deaf for ever",
    """
    voters a b c
    elect a
    term c 7
    quiet a 1
    expect a role=follower term=7
    quiet a b c 30
    expect c term=8 leader=a
    expect a role=leader commit=2
    """,
)
scenario(
    "a leader that hears from no majority steps down",
    """
    voters a b c
    elect a
    cut a
    quiet a 25
    expect a role=follower leader=none
    quiet a 5
    expect a role=pre_candidate term=1      # It asks in vain.
    """,
)
scenario(
    "a learner never stands for election",
    """
    voters a b learners d
    tick d 200
    expect d role=follower term=0
    expect d sent nothing
    d gets Heartbeat from a term=1
    d gets TimeoutNow from a term=1
    expect d role=follower term=1
    """,
)
scenario(
    "a node outside of every membership stays silent",
    """
    voters a b
    joins x
    tick x 200
    expect x role=follower
    expect x sent nothing
    """,
)
scenario(
    "two candidates: the loser follows",
    """
    voters a b c
    campaign a
    campaign b
    settle
    quiet a b c 3
    expect c term=1
    """,
)
scenario(
    "the higher priority goes first",
    """
    voters a b c
    priority b 5
    tick a 10
    expect a role=follower
    tick b 10
    expect b role=pre_candidate
    """,
    election_ticks=10,
)
scenario(
    "but nobody waits for it twice",
    """
    voters a b c
    priority b 5
    tick a 19
    expect a role=follower
    tick a 1
    expect a role=pre_candidate
    tick a 9
    expect a sent nothing
    tick a 1
    expect a sent VoteRequest
    """,
    election_ticks=10,
)
scenario(
    "nobody waits for the leader that is gone, however high its priority",
    """
    voters a b c
    priority b 5
    a gets Heartbeat from b term=1
    tick a 10
    expect a role=pre_candidate
    """,
    election_ticks=10,
)
scenario(
    "a closed link is a reason to ask at once, and harmless if the leader lives",
    """
    voters a b c
    elect a
    link b a
    quiet b 1
    expect b role=pre_candidate term=1
    quiet a b c 2
    expect a role=leader term=1
    expect b role=follower leader=a
    cut a
    link b a
    link c a
    quiet b 1
    expect b role=leader
    """,
    election_ticks=10,
)
scenario(
    "whoever has tried in vain tries again when another one misses the leader and cannot lead itself",
    """
    voters a b c
    elect a
    propose a x
    settle a b          # c has not got it,
    cut a
    link b a            # and has not noticed yet that a is gone.
    quiet b 13
    settle b c
    expect b role=pre_candidate
    link c a
    quiet b c 2
    expect b role=leader
    expect c leader=b
    """,
    election_ticks=10,
)
scenario(
    "a message for an earlier incarnation is not taken",
    """
    voters a b
    joins x
    x gets VoteRequest from a to=old term=3
    expect x sent nothing
    expect x term=0
    """,
)

# Replication

scenario(
    "a proposal is applied by all, and the leader knows",
    """
    voters a b c
    elect a
    propose a x
    settle
    expect a commit=2 data=x applied=2
    expect b commit=2 data=x
    expect c commit=2 data=x
    expect a match.b=2 applied.b=2 applied.c=2   # Without waiting for a heartbeat.
    """,
)
scenario(
    "an append is acknowledged when it is on disk",
    """
    voters a b c
    hold a
    a gets Append from b term=1 entries=1
    expect a sent nothing
    write a
    expect a later AppendResponse accepted=True index=1
    """,
)
scenario(
    "a leader counts its own copy only when it is on disk",
    """
    voters a b c
    elect a
    cut c
    hold a
    propose a x
    settle
    expect b kept=1,1
    expect a match.b=2 commit=1
    write a
    expect a commit=2
    """,
)
scenario(
    "but a majority of others is enough",
    """
    voters a b c
    elect a
    hold a
    propose a x
    settle
    expect a commit=2 applied=1
    write a
    expect a applied=2
    """,
)
scenario(
    "nothing leaves early in a term that is not on disk: a sole voter's learners would see two histories",
    """
    voters a learners d
    hold a
    campaign a
    expect a role=leader term=1
    expect a sent nothing
    write a
    expect a sent Append to=d
    """,
)
scenario(
    "figure 8: an entry of an older term is not committed by counting",
    """
    voters a b c d e
    log a 1 2
    log b 1 2
    log c 1 2
    log d 1
    log e 1 3
    term a 3
    cut d
    cut e
    hold a                  # Its own entry of term 4 is not written, and does not travel.
    campaign a
    write a
    settle
    expect a role=leader term=4
    a gets AppendResponse from b term=4 index=2
    a gets AppendResponse from c term=4 index=2
    expect a commit=3
    """,
)
scenario(
    "figure 8 in small: the old entry is on a majority, and waits for the new one",
    """
    voters a b c
    log a 1 1
    term a 2
    campaign a
    a gets VoteResponse from b term=3 pre=True
    a gets VoteResponse from b term=3
    expect a role=leader
    a gets AppendResponse from b term=3 index=2
    expect a commit=0
    a gets AppendResponse from b term=3 index=3
    expect a commit=3
    """,
)
scenario(
    "acknowledgements of an older term do not count",
    """
    voters a b c
    term a 3
    campaign a
    a gets VoteResponse from b term=4 pre=True
    a gets VoteResponse from b term=4
    propose a x
    a gets AppendResponse from b term=1 index=2
    expect a match.b=0 commit=0
    """,
)
scenario(
    "an acknowledgement that comes twice or late changes nothing",
    """
    voters a b c
    elect a
    propose a x
    settle
    a gets AppendResponse from b term=1 index=1
    a gets AppendResponse from b term=1 accepted=False index=1
    expect a match.b=2 state.b=replicate commit=2
    """,
)
scenario(
    "only a conflict truncates: a late, shorter append does not",
    """
    voters a b c
    a gets Append from b term=1 entries=1,1,1
    a gets Append from b term=1 entries=1
    expect a log=1,1,1
    expect a sent AppendResponse accepted=True index=1   # And promises no more than was said.
    a gets Append from b term=1
    expect a log=1,1,1
    expect a sent AppendResponse accepted=True index=0
    """,
)
scenario(
    "the commit index never goes beyond what the leader is known to have",
    """
    voters a b c
    log a 1 1 1
    a gets Append from b term=2 prev_index=1 prev_term=1 commit=3
    expect a commit=1        # Entries 2 and 3 may be another history.
    """,
)
scenario(
    "a heartbeat's commit index is no higher than what the follower is known to have",
    """
    voters a b c
    elect a
    cut c
    propose a x
    settle
    expect a commit=2
    heal
    c gets Heartbeat from a term=1 commit=0
    quiet a 1
    expect c commit=2
    """,
)
scenario(
    "a leader does not tell a follower to commit what it may not have",
    """
    voters a b c
    log a 1 1
    log b 1 1
    log c 1 2          # Its second entry is another one.
    term a 2
    cut c
    elect a
    expect a commit=3
    tick a 1
    expect a sent Heartbeat to=c commit=0
    expect a sent Heartbeat to=b commit=3
    heal
    quiet a 2
    expect c log=1,1,3 commit=3
    """,
)
scenario(
    "a conflicting tail is replaced",
    """
    voters a b c
    log a 1 1 1
    log b 1 2 2
    log c 1 2 2
    elect b
    expect a log=1,2,2,3 kept=1,2,2,3 commit=4
    """,
)
scenario(
    "far apart: agreement is found, whatever the terms between",
    """
    voters a b c
    log a 1 1 1 1 4 4 5 5 6 6 6
    log b 1 1 1 1 4 4 5 5 6 6 6
    log c 1 1 1 1 2 2 2 3 3 3 3 3
    term a 7
    elect a
    expect c log=1,1,1,1,4,4,5,5,6,6,6,8 commit=12
    """,
)
scenario(
    "a short log is found in one step",
    """
    voters a b c
    log a 1 1 1 1 1 1 1 1
    log b 1 1 1 1 1 1 1 1
    elect a
    expect c log=1,1,1,1,1,1,1,1,2 commit=9
    """,
)
scenario(
    "truncation while a write is in flight: the new entry is written all the same",
    """
    voters a b c
    hold a
    a gets Append from b term=1 entries=1,1
    a gets Append from c term=2 entries=2
    expect a kept=none
    write a
    expect a kept=2 log=2
    expect a later AppendResponse accepted=True index=1 term=2
    """,
)
scenario(
    "truncation after the write",
    """
    voters a b c
    a gets Append from b term=1 entries=1,1
    a gets Append from c term=2 entries=2
    expect a kept=2 log=2
    a gets Append from c term=2 prev_index=1 prev_term=2 entries=2
    expect a kept=2,2
    """,
)
scenario(
    "nothing is acknowledged that was truncated before it was written",
    """
    voters a b c
    hold a
    a gets Heartbeat from b term=1          # A write is in flight, so that the next two gather.
    a gets Append from b term=1 entries=1,1
    a gets Append from c term=2 entries=2
    write a
    expect a sent AppendResponse term=2 index=1
    expect a kept=2
    """,
)
scenario(
    "a lost append is noticed with the next heartbeat",
    """
    voters a b c
    elect a
    cut b
    propose a x
    settle
    expect a match.b=1
    heal
    quiet a 1
    expect a match.b=2
    expect b data=x
    """,
)
scenario(
    "a lost append is noticed even when the window is full",
    """
    voters a b c
    elect a
    cut b
    propose a x
    propose a y
    propose a z
    settle
    heal
    quiet a 4
    expect a match.b=4
    """,
    inflight_max=1,
    append_entries_max=1,
)
scenario(
    "no more is in flight than the window allows",
    """
    voters a b c
    elect a
    propose a x
    expect a sent Append to=b
    propose a y
    expect a sent nothing
    settle
    expect b last=3
    """,
    inflight_max=1,
)
scenario(
    "a leader refuses what it cannot hold",
    """
    voters a b c
    elect a
    cut b
    cut c
    propose a x
    propose a y
    refused: propose a z
    heal
    quiet a 2
    propose a z
    refused: propose b z
    """,
    uncommitted_max=2,
)
scenario(
    "what a crashed leader had not written was not committed",
    """
    voters a b c
    elect a
    cut b
    cut c
    hold a
    propose a x
    settle
    crash a
    expect a last=1
    """,
)
scenario(
    "the commit index does not fall, and a restarted node knows most of it",
    """
    voters a b c
    elect a
    propose a x
    settle
    propose a y
    settle
    crash b
    expect b last=3 commit=2
    quiet a 1
    expect b commit=3 data=x,y
    """,
)

# Membership

scenario(
    "a node joins as a learner, catches up, and becomes a voter",
    """
    voters a
    campaign a
    propose a x
    joins b
    change a learn b
    expect a voters=a
    settle
    expect b data=x voters=a
    change a promote b
    expect a voters=a,b         # In force when appended
    expect a commit=3           # and not yet committed: that takes both.
    settle
    expect a commit=4
    expect b voters=a,b commit=4
    """,
)
scenario(
    "a learner that has not caught up is not promoted",
    """
    voters a learners b
    cut b
    campaign a
    propose a x
    refused: change a promote b
    heal
    quiet a 2
    change a promote b
    """,
)
scenario(
    "one change at a time",
    """
    voters a b c
    elect a
    change a learn d
    refused: change a learn e
    settle
    change a learn e
    """,
)
scenario(
    "the bug of 2015: no change before something of the leader's own term is committed",
    """
    voters a b c
    campaign a
    a gets VoteResponse from b term=1 pre=True
    a gets VoteResponse from b term=1
    refused: change a learn d
    a gets AppendResponse from b term=1 index=1
    change a learn d
    """,
)
scenario(
    "a membership that is truncated is no longer in force",
    """
    voters a b c
    a gets Append from b term=1 entries=1:abcd
    expect a voters=a,b,c,d
    a gets Append from c term=2 entries=2
    expect a voters=a,b,c
    """,
)
scenario(
    "a membership counts when appended: the new voter's vote is needed",
    """
    voters a b
    a gets Append from b term=1 entries=1:abcd
    campaign a
    expect a sent VoteRequest to=d
    tick a 40
    campaign a
    a gets VoteResponse from b term=2 pre=True
    expect a role=pre_candidate
    a gets VoteResponse from c term=2 pre=True
    expect a role=candidate
    """,
)
scenario(
    "a leader that removes itself stays until that is committed, without counting itself",
    """
    voters a b c
    elect a
    cut c
    change a remove a
    settle
    expect a role=leader commit=1     # b alone is no majority of b and c.
    heal
    quiet a 1
    expect a role=follower
    quiet a b c 1
    expect b term=2 voters=b,c
    """,
)
scenario(
    "a leader that removed itself hands over at once",
    """
    voters a b c
    elect a
    change a remove a
    settle
    expect a role=follower commit=2
    expect b term=2
    expect c term=2
    """,
)
scenario(
    "a leader that crashes while it removes itself: it alone has the longest log, and must lead once more",
    """
    voters a b
    log a 1 1:b
    log b 1
    term a 1
    campaign a
    expect a role=pre_candidate
    settle
    expect b role=leader commit=4 voters=b
    expect a role=follower
    """,
)
scenario(
    "a removed node does not lead",
    """
    voters a b c
    a gets Append from b term=1 entries=1:bc commit=1
    expect a voters=b,c commit=1
    campaign a
    expect a role=follower
    a gets TimeoutNow from b term=1
    expect a role=follower term=1
    """,
)
scenario(
    "of two nodes, one that is dead can be removed only while the other still leads",
    """
    voters a b
    elect a
    cut b
    tick a 25
    expect a role=follower
    refused: change a remove b
    """,
)
scenario(
    "a leader of two that may, goes on without the other, whatever became of it",
    """
    voters a b
    spare a b
    elect a
    propose a x
    settle
    cut b
    tick a 25
    expect a role=leader voters=a
    propose a y
    expect a commit=4
    tick b 60
    expect b role=pre_candidate term=1
    heal
    settle
    quiet a b 1
    expect b role=follower leader=a commit=4 voters=a
    change a promote b
    settle
    expect b voters=a,b commit=5
    """,
)
scenario(
    "a leader of two that has agreed on nothing yet does not go on without the other",
    """
    voters a b
    spare a b
    campaign a
    a gets VoteResponse from b term=1 pre=True
    a gets VoteResponse from b term=1
    expect a role=leader commit=0
    tick a 25
    expect a role=follower voters=a,b
    """,
)
scenario(
    "a leader of three goes on without nobody",
    """
    voters a b c
    spare a b
    elect a
    cut b
    cut c
    tick a 25
    expect a role=follower voters=a,b,c
    """,
)
scenario(
    "of three voters one was removed, which is not agreed on: the leader does not go on without the other",
    """
    voters a b c
    spare a b
    elect a
    cut a
    change a remove c
    expect a voters=a,b
    tick a 25
    expect a role=follower
    """,
)
scenario(
    "a learner that was to become a voter is lost: its leader goes on as before",
    """
    voters a learners b
    spare a b
    elect a
    quiet a 2
    change a promote b
    cut b
    tick a 25
    expect a role=leader voters=a commit=3
    """,
)
scenario(
    "a voter of two that stops becomes a learner, cannot be elected, and is a voter again",
    """
    voters a b
    elect a
    change a demote b
    settle
    expect b voters=a commit=2
    tick b 60
    expect b role=follower
    campaign b
    expect b role=follower
    propose a x
    quiet a 2
    change a promote b
    settle
    expect b voters=a,b
    """,
)
scenario(
    "a leader of two that stops makes the other lead alone",
    """
    voters a b
    elect a
    change a demote a
    settle
    expect a role=follower voters=b
    expect b role=leader voters=b
    refused: change b demote b
    """,
)
scenario(
    "the survivor of two goes on, with what it has and the dead one had not",
    """
    voters a b
    elect a
    propose a x
    settle
    cut a
    outlive b a
    expect b role=leader voters=b term=2 commit=4 data=x
    heal
    settle
    quiet b 2
    expect a leader=b voters=b commit=4
    """,
)
scenario(
    "the survivor of two takes over what only the dead one had",
    """
    voters a b
    elect a
    cut b
    propose a x
    propose a y
    outlive b a
    expect b role=leader voters=b commit=5 data=x,y
    heal
    quiet b 2
    expect a leader=b commit=5 data=x,y
    """,
)
scenario(
    "what the survivor has of an older term gives way to what the dead one has",
    """
    voters a b
    log a 1 1 3
    log b 1 1 1 1
    outlive b a
    expect b role=leader term=5 log=1,1,3,5,5 commit=5
    """,
)
scenario(
    "who was left behind does not outlive the one that went on",
    """
    voters a b
    spare a b
    elect a
    cut b
    tick a 25
    propose a x
    refused: outlive b a
    expect b role=follower voters=a,b
    """,
)
scenario(
    "who is a voter in its own log only does not outlive the one that leads alone",
    """
    voters a learners b
    elect a
    quiet a 2
    hold a
    change a promote b
    settle
    expect b voters=a,b commit=1
    crash a
    expect a voters=a
    cut a
    refused: trust b a
    refused: outlive b a
    campaign a
    expect a role=leader voters=a
    """,
)
scenario(
    "who is a voter for sure outlives the other one without its disk",
    """
    voters a learners b
    elect a
    quiet a 2
    change a promote b
    settle
    cut a
    trust b a
    expect b role=leader voters=b
    """,
)
scenario(
    "a survivor whose disk was put back does not take over what it cannot follow",
    """
    voters a b
    elect a
    propose a x
    propose a y
    settle
    compact a
    log b 1
    refused: outlive b a
    """,
)
scenario(
    "what is agreed on here is not taken back for what a dead one has",
    """
    voters a b
    log a 1 2
    log b 1 1 1
    b gets Append from a term=1 prev_index=3 prev_term=1 commit=3
    expect b commit=3
    refused: outlive b a
    """,
)
scenario(
    "one of three outlives nobody",
    """
    voters a b c
    elect a
    refused: outlive b a
    refused: forget b a
    """,
)
scenario(
    "an operator's word takes the other one out for good",
    """
    voters a b
    elect a
    cut a
    forget b a
    expect b role=leader voters=b commit=3
    """,
)
scenario(
    "the last voter cannot be removed, nor a stranger, and nobody joins twice",
    """
    voters a
    campaign a
    refused: change a remove a
    refused: change a remove x
    refused: change a promote x
    refused: change a learn a
    """,
)
scenario(
    "a node that lost its disk has no vote: its new incarnation is a stranger",
    """
    voters a b c
    elect a
    cut b
    joins x                      # On the machine of c.
    cut c
    quiet a 30
    campaign a
    a gets VoteResponse from x term=2 pre=True
    expect a role=pre_candidate
    """,
)

# Handing over

scenario(
    "leadership is handed over, although the leader is well",
    """
    voters a b c
    elect a
    transfer a b
    settle
    expect b role=leader term=2
    expect a role=follower leader=b
    """,
)
scenario(
    "a successor first catches up, and meanwhile nothing is taken on",
    """
    voters a b c
    elect a
    cut b
    propose a x
    settle
    transfer a b
    refused: propose a y
    heal
    quiet a 1
    expect b role=leader term=2 last=3
    """,
)
scenario(
    "a successor that does not answer is given up",
    """
    voters a b c
    elect a
    cut b
    transfer a b
    quiet a c 10
    propose a x
    settle
    expect a role=leader commit=2
    """,
    election_ticks=10,
)

# Snapshots

scenario(
    "who needs what is compacted gets the snapshot, in pieces, and then the rest",
    """
    voters a b c
    elect a
    cut c
    propose a x
    propose a y
    settle
    compact a
    propose a z
    settle
    heal
    quiet a 2
    expect c applied=4 log=1 commit=4
    expect a match.c=4 state.c=replicate applied.c=4
    """,
    chunk_bytes=5,
)
scenario(
    "a snapshot is acknowledged when it is on disk",
    """
    voters a b c
    hold a
    a gets SnapshotChunk from b term=3 index=5 meta_term=2 data=all
    expect a sent nothing
    write a
    expect a later AppendResponse accepted=True index=5
    expect a applied=5
    """,
)
scenario(
    "a snapshot that was damaged on its way is not installed, but asked for again",
    """
    voters a b c
    a gets SnapshotChunk from b term=3 index=5 meta_term=2 data=all checksum=1
    expect a sent SnapshotResponse index=5 received=0
    expect a applied=0 last=0
    a gets SnapshotChunk from b term=3 index=5 meta_term=2 data=all
    expect a applied=5
    """,
)
scenario(
    "a snapshot of the node's own that comes too late is of no use",
    """
    voters a b c
    a gets Append from b term=1 entries=1,1 commit=2
    outrun a gets SnapshotChunk from b term=1 index=9 meta_term=1 data=all
    expect a applied=9 last=9
    """,
)
scenario(
    "a snapshot drops a conflicting tail",
    """
    voters a b c
    a gets Append from b term=1 entries=1,1,1,1,1,1,1,1
    a gets SnapshotChunk from c term=3 index=5 meta_term=2 data=all
    expect a last=5 commit=5 applied=5
    """,
)
scenario(
    "a snapshot of what the log has already is not installed",
    """
    voters a b c
    a gets Append from b term=1 entries=1,1,1,1,1,1
    a gets SnapshotChunk from b term=1 index=5 meta_term=1 data=all
    expect a last=6 commit=5 applied=5
    expect a log=1,1,1,1,1,1
    """,
)
scenario(
    "a late snapshot does not take anything back",
    """
    voters a b c
    a gets Append from b term=1 entries=1,1,1,1 commit=4
    a gets SnapshotChunk from b term=1 index=2 meta_term=1 data=all
    expect a last=4 commit=4
    expect a sent AppendResponse accepted=True index=4
    """,
)
scenario(
    "a lost piece of a snapshot is sent again",
    """
    voters a b c
    elect a
    cut c
    propose a x
    settle
    compact a
    heal
    quiet a 1
    expect c applied=2
    """,
)
scenario(
    "a lost snapshot is sent again",
    """
    voters a b c
    elect a
    cut c
    propose a x
    settle a b
    compact a
    a gets HeartbeatResponse from c term=1
    a gets AppendResponse from c term=1 accepted=False index=2 hint=1 hint_term=1
    expect a state.c=snapshot
    settle a b
    heal
    quiet a b c 5
    expect c applied=2
    """,
    snapshot_ticks=3,
)
scenario(
    "no snapshot of the state machine while one from the leader waits to be installed",
    """
    voters a b c
    a gets Append from b term=1 entries=1,1 commit=2
    hold a
    a gets Append from b term=1 prev_index=2 prev_term=1 entries=1
    a gets SnapshotChunk from b term=1 index=9 meta_term=1 data=all
    nosnapshot a
    write a
    expect a applied=9
    """,
)
