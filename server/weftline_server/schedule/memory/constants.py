"""The constants of admission: one table, each with the measurement that holds it.

`admission.py` has the rules. Decision 12 has the tables of measurements, and what else was tried.
"Sessions" are replays of drawn and of recorded coding sessions; "the mix" is LAMPS's mix of tools.
"""

from __future__ import annotations

# --- How large an application will become -------------------------------------------------------

# The predicted size of applications that grow fills at most this share of the cache. An application
# that will hold no more than its present call has a size that is known, and needs no margin.
# Without the margin drawn and coding sessions end 0.78 to 1.08 times as fast.
FILLED = 0.9
# A first call grows by GROWTH times itself, or GROWTH times the tenant's usual first call if that
# is less: long first calls do not grow as much. With GROWTH times itself, coding agents with long
# first calls ran alone in a cache for eight. Each of the OTHERS applications that ended last
# corrects the guess, by as much as its own first call weighs against this one's.
GROWTH = 2.0
OTHERS = 16
# Applications are of one kind if their first calls differ by at most this factor. Without it, small
# agents had taught that large agents stay small: 31 were admitted where 9 fit, and three quarters
# of the prefill was recomputed.
ALIKE = 1.5
# Kinds remembered for each tenant and model. With this many, every context length is near one.
MOST_KINDS = 32

# --- Whose turn it is ---------------------------------------------------------------------------

# Of two applications that wait, the one with half the tokens goes first if it came at most
# SMALLER_S later: the smaller one holds its room for fewer token-seconds. Sizes count within
# bounds, so that no application is overtaken by one that comes 20 s later. The mix at 3 requests a
# second took an engine 14.9 s each instead of 15.9 s in the order of arrival, and the first token
# came after 3.9 s instead of 8.2 s. With 10 s it was 13.4 s, but large applications waited as long
# as behind a gate that admits what fits.
SMALLER_S = 2.0
LEAST_OWN, MOST_OWN = 64.0, 65_536.0
# Where engines have measured their costs, the token-seconds of the next call take the place of the
# size: an application with half the token-seconds goes first if it came at most SOONER_S later. On
# that mix a request took 11.3 s. With 5 s it was 10.9 s, but large applications waited as long as
# behind a gate that admits what fits. Token-seconds count within bounds, so that no application is
# overtaken by one that comes 30 s later.
SOONER_S = 3.0
LEAST_NEED, MOST_NEED = 32.0, 32_768.0
# What an application waits for is in proportion to what its admission costs. Its context takes
# seconds to compute. Its turn comes RELOADS times these seconds later than that of an application
# without a context. An application that is admitted for its age also takes the room of others, that
# compute their contexts again: it waits for RELOADS times the seconds of both, and such admissions
# are as far apart, so that at most a tenth of the time is lost. Without this, a session with 13,221
# tokens, which fills the cache, was computed in 88 s, and evicted for one with 496 tokens that had
# waited for 120 s: 16 coding sessions on half of their cache ended 2.4 a minute instead of 3.9.
RELOADS = 10.0

# Admission looks at the first CONSIDERED applications that wait for a model, in equal parts of the
# tenants, and at least at CONSIDERED_OF_TENANT of each. A round took 1.6 ms with 500 that waited,
# and 70 ms with 20,000.
CONSIDERED = 256
CONSIDERED_OF_TENANT = 4

# --- Beyond the room ----------------------------------------------------------------------------

# No application is admitted beyond the room once this share of the prefill is recomputed.
MOST_RECOMPUTED = 0.1
# Beyond the room, no application is admitted while the engines are busy for more than SATURATED of
# the time and compute prompts for more than FILLS of it: another application would only slow the
# others down. A step that decodes has room for more sequences, and so one enters after the other,
# once its context is computed. Without FILLS, 12 coding agents on a simulated H100 that holds them
# waited 27 s for a first token in the 95th percentile, and 3.8 s with it. While the engines are
# busy for less than IDLE of the time, recomputing delays no call. With 0.95 in place of IDLE,
# sessions end 0.84 to 1.05 times as fast.
SATURATED = 0.95
IDLE = 0.8
# Where prompts are cheap, as on a GPU, the present sizes have to fit, and not the predicted ones.
# Beyond them an application enters, whatever is recomputed, while the engines compute prompts for
# less than FILLS of the time, and the youngest leaves while they do for longer. Cheap is a context
# that takes less than PROBATION_S / APART to compute at its end. Two such admissions are apart by
# APART times the seconds that the context of the second takes, and so are two that leave. On a
# simulated H200 32 agents of 3,072 tokens on a third of their cache, in three runs, ended 101 to
# 108 applications a minute, 90 to 92 by predicted sizes, and 92 to 93 without the server.
FILLS = 0.8
APART = 3.0
# Seconds between two admissions beyond the room, and after an eviction. Applications are admitted
# one at a time. With 4 s, 16 drawn sessions on a quarter of the cache ended 8.0 a minute instead of
# 8.7, because less was admitted after an eviction.
PROBATION_S = 1.0

# --- For age ------------------------------------------------------------------------------------

# Seconds after which a waiting application is admitted whatever it costs, one after the other. An
# exchange every 90 s in place of 30 s ended 0.79 coding sessions a minute, and this one 1.28.
PATIENCE_S = 120.0
FORCED_EVERY_S = 30.0

# --- When an application gives its room up ------------------------------------------------------

# An application is dormant after this many of its usual pauses, and after the longest pause of its
# kind, but not before DORMANT_S seconds. Without the longest pause, coding agents lost their places
# while their users thought: 24 sessions in the cache that they need ended 1.87 a minute instead of
# 2.01. Where the pauses of its kind are known, KNOWN_DORMANT_S takes the place of DORMANT_S: a
# client may not tell when a session ends. 32 agents with pauses of 0.5 s, on a cache for nine, took
# 120 s with 30 s, and 48 s with 5 s. An application is not dormant before its context could be
# computed RELOADS times, so that at most a tenth of the time is lost: 15 coding sessions on a GPU
# whose host memory holds two thirds of them ended 0.430 a minute instead of 0.394, and 0.273
# instead of 0.267 without that memory. Where nobody tells an end, it is the time of one: two
# sessions with 9,000 and 12,000 tokens had taken turns in a cache for one of them, and each turn
# computed one of them for 40 s.
DORMANT_PAUSES = 4.0
DORMANT_S = 30.0
KNOWN_DORMANT_S = 5.0
# Where no client says that a session ends, these take the place of the three above. Before any
# pause is known, a call that may be the only one keeps its room for as long as its context takes to
# compute, and for END_UNKNOWN_DORMANT_S. With pauses of 0.5 s, 24 agents took 227 s on a cache of
# LRU, and 67 s so.
END_UNKNOWN_PAUSES = 2.0
END_UNKNOWN_DORMANT_S = 1.0
# A kind whose applications give their room up in more than this share of their pauses does so.
MOSTLY = 0.5

# --- What is remembered -------------------------------------------------------------------------

# The weight of the newest observation in a running mean.
NEWEST_WEIGHT = 0.3
# Pauses below so many seconds are not told apart.
SHORTEST_PAUSE_S = 1e-3
# The longest pause of a kind counts less with each later pause: a half after 23 of them.
FADING = 0.97
# After so many seconds, what was seen of an engine's load weighs 1/e.
LOAD_FADES_S = 10.0
# A prompt with fewer computed tokens tells more about the step than about a token.
FEWEST_TIMED = 64
# Prompts of each engine that are remembered.
PROMPTS_KEPT = 16
# Engines that are remembered: those that computed a prompt last.
MOST_ENGINES = 256
