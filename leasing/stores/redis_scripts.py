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

#: The beginning of all scripts. Keys: the mark; then the leases. Arguments: microseconds of the
#: longest ttl, what restarts do; then those of the script.
_COMMON: Final = """
local mark, longest = KEYS[1], tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function record(key)
    local found = redis.call('HMGET', key, 'token', 'grant', 'holder', 'ttl', 'ends', 'over')
    return {
        token = tonumber(found[1] or 0), grant = found[2] or '', holder = found[3] or '',
        ttl = tonumber(found[4] or 0), ends = tonumber(found[5] or 0), over = found[6] or '',
    }
end

-- It is kept for longer than the longest ttl after its end, which is as far away at most.
local function write(key, ...)
    redis.call('HSET', key, ...)
    redis.call('PEXPIRE', key, math.floor(longest / 500) + 1)
end

local function why_over(it, grant)
    if it.grant == '' then return 'gone' end
    if it.grant ~= grant then return 'taken' end
    if it.over ~= '' then return it.over end
    if it.ends <= now then return 'expired' end
    return ''
end

local function run_id()
    return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
end

-- The moment from which on nothing forgotten can be held any more.
local function remembers()
    local known, run = redis.call('HMGET', mark, 'run', 'since'), run_id()
    local since = tonumber(known[2] or 0)
    if known[1] ~= run then
        local keeps = known[1] and ARGV[2] == 'remembers'
            and string.find(redis.call('INFO', 'persistence'), 'aof_enabled:1', 1, true)
        if not keeps then since = now end
        redis.call('HSET', mark, 'run', run, 'since', since)
    end
    return since + longest
end
"""

#: Key: lease. Arguments: grant, holder, ttl, token (0: the next one).
GRANT: Final = (
    _COMMON
    + """
local key, grant, ttl, token = KEYS[2], ARGV[3], tonumber(ARGV[5]), tonumber(ARGV[6])
local it = record(key)
if it.grant == grant then
    local over = why_over(it, grant)
    if over ~= '' then return {over} end
    return {'granted', it.token, it.ends, now}
end
if it.ends > now then return {'held', it.holder, it.ends, now} end
local from = remembers()
if from > now then return {'forgetful', from} end
if token == 0 then token = math.max(it.token + 1, now) end
if token <= it.token then return {'behind'} end
write(key, 'token', token, 'grant', grant, 'holder', ARGV[4], 'ttl', ttl, 'ends', now + ttl,
    'over', '')
return {'granted', token, now + ttl, now}
"""
)

#: Keys: leases. Arguments: the grant of each.
RENEW: Final = (
    _COMMON
    + """
local is_sure = remembers() <= now
local answers = {now}
for place = 2, #KEYS do
    local it = record(KEYS[place])
    local answer = why_over(it, ARGV[place + 1])
    if answer == '' then
        it.ends = math.max(it.ends, now + it.ttl)
        write(KEYS[place], 'ends', it.ends)
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
    _COMMON
    + """
local over = why_over(record(KEYS[2]), ARGV[3])
if over == '' then write(KEYS[2], 'ends', 0, 'over', 'released') end
return over
"""
)

#: Key: lease.
REVOKE: Final = (
    _COMMON
    + """
local it = record(KEYS[2])
if it.ends <= now then return {now, it.token, '', '', 0, 0} end
local token = math.max(it.token + 1, now)
write(KEYS[2], 'token', token, 'ends', 0, 'over', 'revoked')
return {now, token, it.grant, it.holder, it.ttl, now}
"""
)

#: Keys: leases. Of one that has expired by this clock alone, the grant is told: see ``majority``.
READ: Final = (
    _COMMON
    + """
local answers = {}
for place = 2, #KEYS do
    local it = record(KEYS[place])
    if it.ends <= now then
        local expired = it.over == '' and it.grant or ''
        it = {token = it.token, grant = expired, holder = '', ttl = 0, ends = 0}
    end
    answers[place - 1] = {now, it.token, it.grant, it.holder, it.ttl, it.ends}
end
return answers
"""
)

MEMORY: Final = _COMMON + "return {now, remembers()}"

#: From now on the server counts as one that has forgotten nothing.
ADMIT: Final = _COMMON + "redis.call('HSET', mark, 'run', run_id(), 'since', 0)"

#: Keys: leases, as another server has them. Arguments: for each its token, grant, holder, ttl, and
#: the microseconds for which it is held.
COPY: Final = (
    _COMMON
    + """
for place = 2, #KEYS do
    local it = record(KEYS[place])
    local token, grant, holder, ttl, left = unpack(ARGV, place * 5 - 7, place * 5 - 3)
    if tonumber(token) > it.token then
        write(KEYS[place], 'token', token)
        if it.ends <= now + left then
            write(KEYS[place], 'grant', grant, 'holder', holder, 'ttl', ttl, 'ends', now + left,
                'over', '')
        end
    end
end
"""
)
