"""The climb: baseline and profile, then rung after rung: choose, predict, measure, prove, verify, keep or revert."""

from rung.ladder.climb.climb import Climb, resume, start
from rung.ladder.climb.state import Request

__all__ = ["Climb", "Request", "resume", "start"]
