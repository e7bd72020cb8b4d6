-- Whether what this Redis holds of tokens is whole, and the beginning of a time in which it is.
--
-- KEYS  1 epoch   hash: run, began (ms), durable
-- ARGV  1 the run of the process that the caller is connected to
--       2 '1': every write is on disk before it is answered
--       3 '1': nobody has ever been granted anything
--       4 '1': only look
-- A process that restarted has another run than the one that was noted: unless nothing can be lost on the way, what it
-- loaded may lack grants. Answers 1: it was whole already; 2: a new time began, nothing was lost; 3: one began after a
-- loss; 0: it is not whole.

local noted = redis.call('HMGET', KEYS[1], 'run', 'durable')
if noted[1] == ARGV[1] then
  return 1
end
if ARGV[4] == '1' then
  return 0
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if noted[1] and noted[2] == '1' and ARGV[2] == '1' then
  redis.call('HSET', KEYS[1], 'run', ARGV[1])
  return 2
end
local is_first = not noted[1] and ARGV[3] == '1'
redis.call('HSET', KEYS[1], 'run', ARGV[1], 'durable', ARGV[2], 'began', is_first and 0 or now)
return is_first and 2 or 3
