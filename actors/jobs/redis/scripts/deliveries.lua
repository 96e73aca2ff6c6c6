-- Calls on deliveries of webhooks. Those of one receiver are in a set of their own, so that none is before another's.

-- Receivers that are looked at in one call, by chance where there are more.
local MOST_HOSTS = 1000

function S.sending_key(server) return P .. 'sending:' .. server end

-- `...` are how many are under way: hosts and counts, after how many there are, then owners and counts.
function C.claim_deliveries(now, till, total, per_host, per_owner, host_count, ...)
  S.past_memory()
  local given, hosts, owners = { ... }, {}, {}
  for place = 1, #given, 2 do
    local counts = place <= 2 * tonumber(host_count) and hosts or owners
    counts[given[place]] = tonumber(given[place + 1])
  end
  local left = tonumber(total)
  for _, count in pairs(hosts) do
    left = left - count
  end
  local due = {}
  for _, host in ipairs(call('SRANDMEMBER', P .. 'hosts', MOST_HOSTS)) do
    local room = tonumber(per_host) - (hosts[host] or 0)
    if room > 0 then
      S.add_due(due, host, room, now)
    end
  end
  table.sort(due, function(one, other)
    if one.attempt ~= other.attempt then
      return one.attempt < other.attempt
    end
    return one.not_before < other.not_before
  end)
  local claimed = {}
  for _, each in ipairs(due) do
    local owner, host = each.owner, each.host
    local has_room = (owners[owner] or 0) < tonumber(per_owner) and (hosts[host] or 0) < tonumber(per_host)
    if #claimed < left and has_room then
      owners[owner], hosts[host] = (owners[owner] or 0) + 1, (hosts[host] or 0) + 1
      table.insert(claimed, S.claim_delivery(each.id, host, till))
    end
  end
  return claimed
end

-- A few more of a host than there is room for: some may be of owners who have none.
function S.add_due(due, host, room, now)
  local found = call('ZRANGEBYSCORE', P .. 'due:' .. host, '-inf', now, 'WITHSCORES', 'LIMIT', 0, room + MOST_AT_ONCE)
  for place = 1, #found, 2 do
    local owner, attempt = unpack(call('HMGET', P .. 'delivery:' .. found[place], 'owner', 'attempt'))
    table.insert(due, {
      id = found[place], host = host, owner = owner, attempt = tonumber(attempt), not_before = tonumber(found[place + 1]),
    })
  end
end

function S.claim_delivery(id, host, till)
  local key = P .. 'delivery:' .. id
  local attempt = call('HINCRBY', key, 'attempt', 1)
  call('ZADD', P .. 'due:' .. host, till, id)
  call('SADD', S.sending_key(SERVER), id)
  local owner, url, state, job, created = unpack(call('HMGET', key, 'owner', 'url', 'state', 'job', 'created'))
  return { id, owner, url, host, state, job, created, attempt }
end

function C.settle_delivery(id, again)
  S.past_memory()
  call('SREM', S.sending_key(SERVER), id)
  local owner, host = unpack(call('HMGET', P .. 'delivery:' .. id, 'owner', 'host'))
  if not host then
    return
  end
  local due = P .. 'due:' .. host
  if again ~= '' then
    call('ZADD', due, again, id)
    return
  end
  call('DEL', P .. 'delivery:' .. id)
  call('ZREM', due, id)
  if call('EXISTS', due) == 0 then
    call('SREM', P .. 'hosts', host)
  end
  if call('HINCRBY', P .. 'deliveries-of', owner, -1) <= 0 then
    call('HDEL', P .. 'deliveries-of', owner)
  end
end

-- Of a server that has ended: what was under way there is due.
function S.give_back_deliveries(server, now)
  for _, id in ipairs(call('SMEMBERS', S.sending_key(server))) do
    local host = call('HGET', P .. 'delivery:' .. id, 'host')
    if host then
      call('ZADD', P .. 'due:' .. host, now, id)
    end
  end
  call('DEL', S.sending_key(server))
end
