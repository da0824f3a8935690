"""Decides whether the next commit waits for publishes that are about to arrive.

A publisher with a small window answers each confirm with as many publishes. If the next commit began the moment the
last one ended, half of the window would always be under way and the other half wait for it. So after a commit that
confirmed something, the next one lets as many publishes arrive as were confirmed, for as long as the last commit took
at most, and never more than `GATHER_S_MAX`. Only publishers that wait for the disk anyway wait for this: for the first
publish of an idle node, or single publishes one after the other, the number is already reached. After a wait in which
less than four fifths of the number came, some commits begin without one.

What arrives during a wait is delivered at once, unless publishers *answer*: all of them wait for confirms, and send a
whole window when they come. Then nothing is delivered before the window is complete, and the commit has begun: a client
that is about to send ten messages should not have to share its processor with one that gets them one by one. Large
windows (`ANSWER_MAX`) keep both busy anyway.

Publishers that answer cannot be told by the number that came. Others send at their own pace, and as many come in the
next wait as came in the last one. But these go on sending during a commit, while publishers whose whole window is in
the commit send nothing before it is done.

A window may be halved: one half comes while the other is committed, which looks like publishers that go on sending.
So now and then a commit waits for as many publishes on top of what came during the commit before. If nothing comes
during that commit, the window is whole again. Otherwise the next such *trial* is after twice as many commits.
"""

from __future__ import annotations

from typing import Final

GATHER_S_MAX: Final = 0.0004
ANSWER_MAX: Final = 64  # The largest window, of all publishers together, that is delivered as a whole.
UNGATHERED_MAX: Final = 16  # Commits that begin without a wait after waits in vain.
UNTRIED_MAX: Final = 128  # Commits without a trial after trials in vain.


class Gathering:
    """Waits for publishes that answer confirms. All counts of publishes are those of the node's whole life."""

    def __init__(self) -> None:
        self.has_waited = False  # The next commit has waited.
        self.is_answered = False  # Publishers wait for confirms, and answer them.
        self.until_s = 0.0  # The next commit does not wait beyond this time.
        self._wanted = 0  # It waits until so many have been published.
        self._enough = 0  # If fewer than this have been published, the wait was in vain.
        self._confirmed = 0  # How many messages were confirmed last.
        self._begun_with = 0  # How many had been published when the last commit began.
        self._is_tested = False  # That commit had waited, and it is not known yet what came during it.
        self._skipped = 0  # So many commits begin without a wait.
        self._skipped_next = 1  # And so many after the next wait in vain.
        self._is_trial = False  # The next commit waits for the other half of a window.
        self._untried = 0  # So many commits are no trials.
        self._untried_next = 1  # And so many after the next trial in vain.

    @property
    def is_small(self) -> bool:
        """Whether the last commit confirmed no more than a small window, or several."""
        return self._confirmed <= ANSWER_MAX

    def expects_more(self, published: int) -> bool:
        """Returns whether publishes may be about to arrive that the next commit should contain."""
        return published < self._wanted

    def on_wait(self) -> None:
        """Called when the next commit waits."""
        self.has_waited = True

    def on_commit(self, published: int) -> None:
        """Called when a commit begins that somebody waits for."""
        self._begun_with = published
        self._is_tested = self.has_waited
        if not self.has_waited:
            return
        self.has_waited = False
        if published < self._enough:
            self._skipped = self._skipped_next
            self._skipped_next = min(2 * self._skipped_next, UNGATHERED_MAX)
        else:
            self._skipped_next = 1

    def on_confirmed(self, published: int, count: int, now_s: float, took_s: float) -> None:
        """Called when so many messages are being confirmed, by a commit that took so long."""
        self._confirmed = count
        if count < 2 or self._skipped:
            self._skipped = max(0, self._skipped - 1)
            self._wanted = 0
            return
        self._wanted = published + count
        self._enough = published + count * 4 // 5
        self.until_s = now_s + min(took_s, GATHER_S_MAX)

    def on_read(self, published: int) -> None:
        """Called when all that arrived during the last commit has been read, but hardly any answer to its confirms."""
        if self._is_tested:
            self._is_tested = False
            self.is_answered = self.is_small and (published - self._begun_with) * 5 <= self._confirmed
            self._on_trial()
        if self._wanted and not self.is_answered and self.is_small:
            if self._untried:
                self._untried -= 1
            else:
                self._is_trial = True
                self._wanted = published + self._confirmed

    def _on_trial(self) -> None:
        """Called when it is known whether publishers answer."""
        if self.is_answered:
            self._untried_next = 1
        elif self._is_trial:
            self._untried = self._untried_next
            self._untried_next = min(2 * self._untried_next, UNTRIED_MAX)
        self._is_trial = False
