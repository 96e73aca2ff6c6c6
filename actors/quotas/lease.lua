-- Leases of places for requests at once: one key for each limit, a hash that has for each server
-- "<places leased> <requests that run> <places needed> <when the lease ends, by the clock of this Redis>".
-- Arguments: the server, for how many milliseconds, and for each key: requests that run, places needed, places wanted,
-- the limit. Answers for each key: the lease, places that others have, requests of theirs, and 1 if one of them needs more.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local server, lasts = ARGV[1], tonumber(ARGV[2])
local answer = {}
for number, key in ipairs(KEYS) do
    local first = 4 * number - 1
    local held, need = tonumber(ARGV[first]), tonumber(ARGV[first + 1])
    local want, limit = tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3])
    local leased_elsewhere, held_elsewhere, is_wanted = 0, 0, 0
    local found = redis.call('HGETALL', key)
    for at = 1, #found, 2 do
        local lease, runs, needs, ends = string.match(found[at + 1], '^(%d+) (%d+) (%d+) (%d+)$')
        if tonumber(ends) <= now then
            redis.call('HDEL', key, found[at])
        elseif found[at] ~= server then
            leased_elsewhere, held_elsewhere = leased_elsewhere + tonumber(lease), held_elsewhere + tonumber(runs)
            if tonumber(needs) > tonumber(lease) then
                is_wanted = 1
            end
        end
    end
    -- What runs is a fact, also where the limit was lowered, or other servers were unknown when it began.
    local lease = math.max(held, math.min(want, limit - leased_elsewhere))
    if lease == 0 and need == 0 then
        redis.call('HDEL', key, server)
    else
        redis.call('HSET', key, server, string.format('%d %d %d %d', lease, held, need, now + lasts))
        redis.call('PEXPIRE', key, lasts)
    end
    answer[number] = {lease, leased_elsewhere, held_elsewhere, is_wanted}
end
return answer
