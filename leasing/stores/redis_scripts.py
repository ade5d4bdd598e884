"""The verbs of leases in Redis, as scripts, which the server runs one at a time.

A lease is a hash: the last ``token``, the ``grant`` with that, its ``holder``, its ``ttl``, the
moment at which it ``ends``, and why it was ``over`` before that: then it ends at 0, whatever the
clock does. Times are microseconds of the server's clock. The hash vanishes some time after its last
change; tokens rise all the same, since a new one is not below the clock.

The ``mark`` says since when the server remembers what it granted. One without a mark is new or was
emptied; one that runs for the first time since then was restarted, and has forgotten nothing only
if it writes a file of all changes. A server that may have forgotten grants nothing, and confirms no
renewal, until all that it may have granted before has ended.
"""

from __future__ import annotations

from typing import Final

_RECORD: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function record(key)
    local found = redis.call('HMGET', key, 'token', 'grant', 'holder', 'ttl', 'ends', 'over')
    return {
        token = tonumber(found[1] or 0), grant = found[2] or '', holder = found[3] or '',
        ttl = tonumber(found[4] or 0), ends = tonumber(found[5] or 0), over = found[6] or '',
    }
end

local function why_over(it, grant)
    if it.grant == '' then return 'gone' end
    if it.grant ~= grant then return 'taken' end
    if it.over ~= '' then return it.over end
    if it.ends <= now then return 'expired' end
    return ''
end
"""

#: ``remembers`` is the moment from which on nothing forgotten can be held any more.
_MEMORY: Final = """
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')

local function remembers(mark, longest, restarts)
    local known = redis.call('HMGET', mark, 'run', 'since')
    local since = tonumber(known[2] or 0)
    if known[1] ~= run then
        local keeps = known[1] and restarts == 'remembers'
            and string.find(redis.call('INFO', 'persistence'), 'aof_enabled:1', 1, true)
        if not keeps then since = now end
        redis.call('HSET', mark, 'run', run, 'since', since)
    end
    return since + longest
end
"""

#: Keys: mark, lease. Arguments: microseconds of the longest ttl, what restarts do, milliseconds to
#: keep the hash, grant, holder, ttl, token (0: the next one).
GRANT: Final = (
    _RECORD
    + _MEMORY
    + """
local key, longest, restarts, keep, grant, holder = KEYS[2], unpack(ARGV)
local ttl, token = tonumber(ARGV[6]), tonumber(ARGV[7])
local it = record(key)
if it.grant == grant then
    local over = why_over(it, grant)
    if over ~= '' then return {over} end
    return {'granted', it.token, it.ends, now}
end
if it.ends > now then return {'held', it.holder, it.ends, now} end
local from = remembers(KEYS[1], longest, restarts)
if from > now then return {'forgetful', from} end
if token == 0 then token = math.max(it.token + 1, now) end
if token <= it.token then return {'behind'} end
redis.call('HSET', key, 'token', token, 'grant', grant, 'holder', holder, 'ttl', ttl,
    'ends', now + ttl, 'over', '')
redis.call('PEXPIRE', key, keep)
return {'granted', token, now + ttl, now}
"""
)

#: Keys: mark, leases. Arguments: the first three of GRANT, and the grant of each lease.
RENEW: Final = (
    _RECORD
    + _MEMORY
    + """
local is_sure = remembers(KEYS[1], ARGV[1], ARGV[2]) <= now
local answers = {now}
for place = 2, #KEYS do
    local key, grant = KEYS[place], ARGV[place + 2]
    local it = record(key)
    local answer = why_over(it, grant)
    if answer == '' then
        it.ends = math.max(it.ends, now + it.ttl)
        redis.call('HSET', key, 'ends', it.ends)
        redis.call('PEXPIRE', key, ARGV[3])
        answer = is_sure and 'renewed' or 'forgetful'
    end
    table.insert(answers, answer)
    table.insert(answers, it.ends)
end
return answers
"""
)

#: Key: lease. Argument: the grant.
RELEASE: Final = (
    _RECORD
    + """
local it = record(KEYS[1])
local over = why_over(it, ARGV[1])
if over == '' then redis.call('HSET', KEYS[1], 'ends', 0, 'over', 'released') end
return over
"""
)

#: Key: lease. Argument: milliseconds to keep the hash.
REVOKE: Final = (
    _RECORD
    + """
local it = record(KEYS[1])
if it.ends <= now then return {now, it.token, '', '', 0, 0} end
local token = math.max(it.token + 1, now)
redis.call('HSET', KEYS[1], 'token', token, 'ends', 0, 'over', 'revoked')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {now, token, it.grant, it.holder, it.ttl, now}
"""
)

#: Keys: leases.
READ: Final = (
    _RECORD
    + """
local answers = {}
for place, key in ipairs(KEYS) do
    local it = record(key)
    if it.ends <= now then it = {token = it.token, grant = '', holder = '', ttl = 0, ends = 0} end
    answers[place] = {now, it.token, it.grant, it.holder, it.ttl, it.ends}
end
return answers
"""
)

#: Key: mark. Arguments: the first two of GRANT.
MEMORY: Final = _RECORD + _MEMORY + "return {now, remembers(KEYS[1], ARGV[1], ARGV[2])}"

#: Key: mark. From now on the server counts as one that has forgotten nothing.
ADMIT: Final = _RECORD + _MEMORY + "redis.call('HSET', KEYS[1], 'run', run, 'since', 0)"

#: Keys: leases, as another server has them. Arguments: milliseconds to keep the hashes; then for
#: each its token, grant, holder, ttl, and the microseconds for which it is held.
COPY: Final = (
    _RECORD
    + """
for place, key in ipairs(KEYS) do
    local it = record(key)
    local token, grant, holder, ttl, left = unpack(ARGV, place * 5 - 3, place * 5 + 1)
    if tonumber(token) > it.token then
        redis.call('HSET', key, 'token', token)
        if it.ends <= now + left then
            redis.call('HSET', key, 'grant', grant, 'holder', holder, 'ttl', ttl,
                'ends', now + left, 'over', '')
        end
        redis.call('PEXPIRE', key, ARGV[1])
    end
end
"""
)
