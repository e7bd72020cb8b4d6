-- One step on one token pool, whole or not at all. Time is this Redis's own, so callers' clocks do not matter.
--
-- KEYS  1 pool      hash: quota, used (units), tokens (how many), per_ms (0: a counting pool), wait_ms,
--                   and a counter for each project (p:PROJECT) and each project and domain (n:PROJECT/DOMAIN)
--       2 callers   hash: PROJECT/DOMAIN/TOKEN -> UNITS TAKEN_MS OWNER; a job's token of a rate pool begins with \1
--       3 jobs      hash: likewise, held until the job's end
--       4 expiry    sorted set: the callers' tokens by the end of their lease
--       5 epoch     hash: run (the Redis process under which all this is known to be whole), began (ms), durable,
--                   term (of the server that leads: only it takes and gives back for jobs)
-- ARGV  1 what to do, 2 the run of the process that the caller is connected to, then what each step needs; of steps for
--       jobs the term comes first
--
-- Answers: a list of numbers; of a take or a give {1, a digit for each key, ms until a rate pool has one again};
-- {-1}: no such pool; {-2, ms}: who held what is being found out; {-3}: another server leads.
-- Cost: counters are kept, nothing is searched; what has expired is dropped once, by whoever comes next.

local pool, callers, jobs, expiry, epoch = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local what, run = ARGV[1], ARGV[2]
local SWEEP_MAX = 1000
local ADDED_MAX = 10000
local FIRST = 3

-- A leader that was paused and replaced must not give back what its successor has taken.
if what == 'take-jobs' or what == 'give-jobs' or what == 'restore' then
  if (redis.call('HGET', epoch, 'term') or '') ~= ARGV[3] then
    return { -3 }
  end
  FIRST = 4
elseif what == 'give' then
  FIRST = 4 -- after the owner
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local delta, order = {}, {}
local function add(field, units)
  if delta[field] == nil then
    delta[field] = 0
    order[#order + 1] = field
  end
  delta[field] = delta[field] + units
end

local function scope_of(key)
  local first = string.find(key, '/', 1, true)
  local namespace = string.sub(key, 1, string.find(key, '/', first + 1, true) - 1)
  return 'p:' .. string.sub(key, 1, first - 1), 'n:' .. namespace
end

local function count_in(by_project, by_namespace, units, tokens)
  add('used', units)
  add('tokens', tokens)
  add(by_project, units)
  add(by_namespace, units)
end

local function count(key, units, tokens)
  local by_project, by_namespace = scope_of(key)
  count_in(by_project, by_namespace, units, tokens)
end

-- Tokens that were taken in one call have one text.
local texts = {}
local function units_of(held)
  local units = texts[held]
  if not units then
    units = tonumber(string.match(held, '^%d+'))
    texts[held] = units
  end
  return units
end

-- Whether this is held by somebody else. Who says no owner gives back whatever it is.
local function is_others(held, owner)
  local holder = owner ~= '' and string.match(held, '^%d+ %d+ (.+)$')
  return holder and holder ~= owner
end

local function sweep()
  local over = redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, SWEEP_MAX)
  if #over == 0 then
    return
  end
  local held = redis.call('HMGET', callers, unpack(over))
  for i, key in ipairs(over) do
    if held[i] then
      count(key, -units_of(held[i]), -1)
    end
  end
  redis.call('HDEL', callers, unpack(over))
  redis.call('ZREM', expiry, unpack(over))
end

local function write_counters()
  for _, field in ipairs(order) do
    if delta[field] ~= 0 then
      local left = redis.call('HINCRBY', pool, field, delta[field])
      if left <= 0 and field ~= 'used' and field ~= 'tokens' then
        redis.call('HDEL', pool, field)
      end
    end
  end
end

-- What a project, or a project and domain, holds: as stored, with what this step has changed so far.
local function held_by(field)
  return tonumber(redis.call('HGET', pool, field) or 0) + (delta[field] or 0)
end

if what == 'register' then
  -- quota, per_ms, wait_ms
  local there = redis.call('HMGET', pool, 'quota', 'per_ms')
  if there[1] then
    return { 0, tonumber(there[1]), tonumber(there[2]) }
  end
  redis.call('HSET', pool, 'quota', ARGV[3], 'per_ms', ARGV[4], 'wait_ms', ARGV[5], 'used', 0, 'tokens', 0)
  return { 1 }
end

if what == 'settle' then
  -- quota, per_ms, wait_ms: as the store has them, whatever is here
  redis.call('HSET', pool, 'quota', ARGV[3], 'per_ms', ARGV[4], 'wait_ms', ARGV[5])
  redis.call('HSETNX', pool, 'used', 0)
  redis.call('HSETNX', pool, 'tokens', 0)
  return { 1 }
end

if what == 'recount' then
  -- The counters against what is held, and anew where they differ: somebody else wrote or removed these keys. Of very
  -- many only how many they are: adding them up would keep all others waiting.
  local fields = redis.call('HMGET', pool, 'quota', 'per_ms', 'wait_ms', 'tokens')
  if not fields[1] then
    return { -1 }
  end
  local many = redis.call('HLEN', callers) + redis.call('HLEN', jobs)
  local differs = tonumber(fields[4]) ~= many
  if many > ADDED_MAX and not differs then
    return { 0 }
  end
  for _, place in ipairs({ callers, jobs }) do
    local held = redis.call('HGETALL', place)
    for at = 1, #held, 2 do
      count(held[at], units_of(held[at + 1]), 1)
      if place == callers and not redis.call('ZSCORE', expiry, held[at]) then
        redis.call('ZADD', expiry, now + tonumber(fields[3]), held[at])
        differs = true
      end
    end
  end
  local stored = redis.call('HGETALL', pool)
  local agreeing = 0
  for at = 1, #stored, 2 do
    local field = stored[at]
    if field == 'used' or field == 'tokens' or string.find(field, '^[pn]:') then
      differs = differs or tonumber(stored[at + 1]) ~= (delta[field] or 0)
      agreeing = agreeing + (delta[field] and 1 or 0)
    end
  end
  if not differs and agreeing == #order then
    return { 0 }
  end
  redis.call('DEL', pool)
  redis.call('HSET', pool, 'quota', fields[1], 'per_ms', fields[2], 'wait_ms', fields[3], 'used', 0, 'tokens', 0)
  write_counters()
  return { 1 }
end

local state = redis.call('HMGET', pool, 'quota', 'used', 'per_ms', 'wait_ms', 'tokens')
if not state[1] then
  return { -1 }
end
local quota, used, per_ms = tonumber(state[1]), tonumber(state[2]), tonumber(state[3])
local began = redis.call('HMGET', epoch, 'run', 'began')
local withheld = nil
if began[1] ~= run then
  withheld = 0
elseif now < began[2] + state[4] then
  withheld = began[2] + state[4] - now
end

if what == 'give' or what == 'give-jobs' then
  -- (of callers: the owner,) keys, all of one project and domain. What a rate pool granted counts until its time is
  -- over, also when the caller is done. A digit of 6: another owner holds it.
  local place = what == 'give' and callers or jobs
  local owner = what == 'give' and ARGV[3] or ''
  local given, counted, gone, units, tokens = {}, {}, {}, 0, 0
  local held = redis.call('HMGET', place, unpack(ARGV, FIRST))
  for i = 1, #ARGV - FIRST + 1 do
    local key = ARGV[FIRST + i - 1]
    if held[i] and is_others(held[i], owner) then
      given[i] = '6'
    elseif held[i] and not counted[key] then
      counted[key] = true
      given[i] = '1'
      gone[#gone + 1] = key
      units, tokens = units + units_of(held[i]), tokens + 1
    else
      given[i] = '0'
    end
  end
  if tokens > 0 and per_ms == 0 then
    redis.call('HDEL', place, unpack(gone))
    redis.call('ZREM', expiry, unpack(gone))
    local by_project, by_namespace = scope_of(ARGV[FIRST])
    count_in(by_project, by_namespace, -units, -tokens)
    write_counters()
  end
  return { 1, table.concat(given) }
end

if what == 'stand' then
  sweep()
  write_counters()
  local now_used = tonumber(redis.call('HGET', pool, 'used'))
  local by_callers, by_jobs = redis.call('HLEN', callers), redis.call('HLEN', jobs)
  return { 1, quota, now_used, per_ms, by_jobs, by_callers, withheld or -1 }
end

if what == 'quota' then
  redis.call('HSET', pool, 'quota', ARGV[3])
  return { 1 }
end

if what == 'remove' then
  sweep()
  write_counters()
  if redis.call('HLEN', callers) + redis.call('HLEN', jobs) > 0 then
    return { 0 }
  end
  redis.call('DEL', pool, callers, jobs, expiry)
  return { 1 }
end

if what == 'restore' then
  -- (key, units, owner)*: jobs that the store knows to hold these, whatever the quota says.
  for at = FIRST, #ARGV, 3 do
    if redis.call('HSETNX', jobs, ARGV[at], ARGV[at + 1] .. ' ' .. now .. ' ' .. ARGV[at + 2]) == 1 then
      count(ARGV[at], tonumber(ARGV[at + 1]), 1)
    end
  end
  write_counters()
  return { 1 }
end

sweep()

if what == 'renew' then
  -- (key, units, owner, lease_ms)*. While it is being found out who held what, a holder's word is taken for it, as far
  -- as it can be true: all holders together never had more than there is.
  local renewed = {}
  for at = 3, #ARGV, 4 do
    local key = ARGV[at]
    local there = redis.call('HGET', callers, key)
    local is_held = there and not is_others(there, ARGV[at + 2])
    local is_likely = used + (delta['used'] or 0) + tonumber(ARGV[at + 1]) <= quota
    if not there and withheld and per_ms == 0 and is_likely then
      redis.call('HSET', callers, key, ARGV[at + 1] .. ' ' .. now .. ' ' .. ARGV[at + 2])
      count(key, tonumber(ARGV[at + 1]), 1)
      is_held = true
    end
    if is_held and per_ms == 0 then
      redis.call('ZADD', expiry, now + ARGV[at + 3], key)
    end
    renewed[#renewed + 1] = is_held and 1 or 0
  end
  write_counters()
  return renewed
end

-- take, take-jobs: units, owner, lease_ms, project cap or '', namespace cap or '', then keys, all of one project and
-- domain: each is granted that or refused by itself.
if withheld then
  write_counters()
  return { -2, withheld }
end
local place = what == 'take' and callers or jobs
local units, owner, lease_ms = tonumber(ARGV[FIRST]), ARGV[FIRST + 1], tonumber(ARGV[FIRST + 2])
local project_cap, namespace_cap = tonumber(ARGV[FIRST + 3]), tonumber(ARGV[FIRST + 4])
local keys = { unpack(ARGV, FIRST + 5) }
if per_ms > 0 then
  lease_ms = per_ms
end
if place == jobs and per_ms > 0 then
  -- Nothing of a rate pool is given back, so a job's tokens end by themselves, as callers' do.
  place = callers
  for i, key in ipairs(keys) do
    keys[i] = string.gsub(key, '^[^/]*/[^/]*/', '%0\1')
  end
end

-- How many more the pool, the project and the namespace allow.
local by_project, by_namespace = scope_of(keys[1])
local free = quota - used - (delta['used'] or 0)
local project_free = project_cap and project_cap - held_by(by_project) or math.huge
local namespace_free = namespace_cap and namespace_cap - held_by(by_namespace) or math.huge

local held = redis.call('HMGET', place, unpack(keys))
local answers, holding, leases, fresh, taken, n = {}, {}, {}, {}, 0, 0
local value = units .. ' ' .. now .. ' ' .. owner
local over = string.format('%.0f', now + lease_ms)
for i = 1, #keys do
  local key = keys[i]
  local has = held[i] and units_of(held[i]) or fresh[key]
  local answer = '1'
  if has then
    if held[i] and is_others(held[i], owner) then
      answer = '6'
    elseif has ~= units then
      answer = '5'
    elseif lease_ms > 0 and per_ms == 0 then
      leases[n + 1], leases[n + 2] = over, key
      n = n + 2
    end
  elseif units > free then
    answer = '2'
  elseif units > project_free then
    answer = '3'
  elseif units > namespace_free then
    answer = '4'
  else
    free, project_free, namespace_free = free - units, project_free - units, namespace_free - units
    fresh[key] = units
    holding[2 * taken + 1], holding[2 * taken + 2] = key, value
    taken = taken + 1
    if lease_ms > 0 then
      leases[n + 1], leases[n + 2] = over, key
      n = n + 2
    end
  end
  answers[i] = answer
end
if taken > 0 then
  redis.call('HSET', place, unpack(holding))
  count_in(by_project, by_namespace, taken * units, taken)
end
if n > 0 then
  redis.call('ZADD', expiry, unpack(leases))
end
write_counters()
local wait_ms = 0
if per_ms > 0 then
  -- When the next one of a rate pool can be granted at the earliest.
  local first = redis.call('ZRANGE', expiry, 0, 0, 'WITHSCORES')
  wait_ms = first[2] and math.max(1, first[2] - now) or 0
end
return { 1, table.concat(answers), wait_ms }
