"""The Lua scripts that Redis runs. Each touches one key, so that they work on a cluster, and takes time from Redis.

Quota: a hash of counters, one per slot of the window (field: slot number, value: units), and an epoch. Units count
from their slot's start until `keep` slots after its end, where `keep` covers the window and the time in which a
granted unit may still be spent. So in any window as long as the limit's, no more than its capacity are spent.

Exchange: a hash with one field per replica; each writes its own field only, stamped, and reads all. What is not
renewed within its time to live is removed by whoever comes next.

After a fail-over Redis' clock may be behind: what lies further ahead than it could be kept is treated as gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha1


@dataclass(frozen=True, slots=True)
class Script:
    """A script with one key. Redis names it by the SHA-1 of its text."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", sha1(self.text.encode(), usedforsecurity=False).hexdigest())


RESERVE = Script("""
local need, want, debt = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local capacity, slot_us, keep = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local sharing = tonumber(ARGV[7])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local slot = math.floor(now / slot_us)
local rows = redis.call('HGETALL', KEYS[1])
local used, counts, dead, epoch = 0, {}, {}, false
for i = 1, #rows, 2 do
  if rows[i] == 'epoch' then
    epoch = rows[i + 1]
  else
    local s, n = tonumber(rows[i]), tonumber(rows[i + 1])
    if s < slot - keep or s > slot + keep then dead[#dead + 1] = rows[i]
    else used = used + n; counts[s] = n end
  end
end
if #dead > 0 then redis.call('HDEL', KEYS[1], unpack(dead)) end
if not epoch then
  epoch = time[1] .. '.' .. time[2]
  redis.call('HSET', KEYS[1], 'epoch', epoch)
end
local free = capacity - used - debt
local granted = math.max(0, math.min(free, math.max(need, math.min(want, math.floor(free / sharing)))))
if granted + debt > 0 then redis.call('HINCRBY', KEYS[1], string.format('%d', slot), granted + debt) end
redis.call('PEXPIRE', KEYS[1], math.ceil(slot_us * (keep + 2) / 1000))
local wait = 0
if granted < need then
  wait = slot_us * keep
  local back = free
  for s = slot - keep, slot do
    back = back + (counts[s] or 0)
    if back >= need then wait = (s + keep + 1) * slot_us - now; break end
  end
end
return {granted, free - granted, wait, string.format('%d', slot), epoch}
""")
"""need, want, debt, capacity, microseconds a slot, slots kept, sharers -> units, free, wait in us, slot, epoch."""

GIVE_BACK = Script("""
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held then
  redis.call('HINCRBY', KEYS[1], ARGV[1], -math.min(tonumber(held), tonumber(ARGV[2])))
end
return 1
""")
"""slot, units. A slot that is gone has given its units back already."""

EXCHANGE = Script("""
local id, blob, ttl_us, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if ARGV[5] == 'put' then
  redis.call('HSET', KEYS[1], id, string.format('%016d', now) .. blob)
  redis.call('PEXPIRE', KEYS[1], math.ceil(ttl_us / 1000))
elseif ARGV[5] == 'drop' then
  redis.call('HDEL', KEYS[1], id)
end
local rows = redis.call('HGETALL', KEYS[1])
local live = {}
for i = 1, #rows, 2 do
  local stamp = tonumber(string.sub(rows[i + 1], 1, 16))
  if stamp and math.abs(now - stamp) <= ttl_us then live[#live + 1] = {stamp, rows[i], string.sub(rows[i + 1], 17)}
  else redis.call('HDEL', KEYS[1], rows[i]) end
end
table.sort(live, function(a, b) return a[1] > b[1] end)
local out = {}
for i, row in ipairs(live) do
  if i > most then redis.call('HDEL', KEYS[1], row[2])
  else out[#out + 1] = row[2]; out[#out + 1] = row[3] end
end
return out
""")
"""id, blob, microseconds to live, most entries, put | read | drop -> id, blob, id, blob, ... newest first."""

RECENT = Script("""
local out = {}
for i, entry in ipairs(redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', ARGV[1])) do out[i] = entry[2][2] end
return out
""")
"""limit -> the entries' bytes, newest first. A script, since clients differ in how they read a stream's reply."""
