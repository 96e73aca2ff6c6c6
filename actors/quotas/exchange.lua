-- Levels of limits: adds to each what a server has used of it, and answers with them.
-- A key holds its level and when that was so, by the clock of this Redis. For each key there are four arguments: what to
-- add, the level where the key was lost, the units that flow back in a second, and above what not to raise it (or -1).
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local longest = 3e11 -- milliseconds, some ten years: what is owed may be anything, what Redis can keep not
local answer = {}
for number, key in ipairs(KEYS) do
    local first = 4 * number - 3
    local delta, level = tonumber(ARGV[first]), tonumber(ARGV[first + 1])
    local rate, most = tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3])
    local kept = redis.call('GET', key)
    if kept then
        local before, at = string.match(kept, '^(%S+) (%S+)$')
        level = math.max(0, tonumber(before) - math.max(0, now - tonumber(at)) * rate)
    end
    local raised = math.max(0, level + delta)
    if most >= 0 and raised > most then
        raised = math.max(level, most)
    end
    -- Kept until no server can believe any more that some of it is used: a level that was given back, too.
    local ttl = math.max(math.min(math.ceil(raised / rate * 1000) + 1000, longest), redis.call('PTTL', key))
    redis.call('SET', key, string.format('%.17g %.17g', raised, now), 'PX', string.format('%.0f', ttl))
    answer[number] = string.format('%.17g', raised)
end
return answer
