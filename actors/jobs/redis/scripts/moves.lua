-- Moves of jobs between their states, what follows from them, and jobs that are forgotten.

-- A job has come to a state that its webhook tells.
function S.deliver(id, state, now)
  local key = S.job_key(id)
  local told, url, host, owner = unpack(call('HMGET', key, 'webhook_states', 'webhook_url', 'webhook_host', 'owner'))
  if not told or not string.find(told, ',' .. state .. ',', 1, true) then
    return
  end
  S.keep_delivery(id, owner, state, url, host, cmsgpack.pack(S.job(id)), now)
end

function S.keep_delivery(id, owner, state, url, host, job, now)
  local delivery = 'msg_' .. string.sub(redis.sha1hex(NONCE .. id .. state), 1, 32)
  call('HSET', P .. 'delivery:' .. delivery, 'owner', owner, 'url', url, 'host', host, 'state', state,
    'job', job, 'created', now, 'attempt', 0)
  call('HINCRBY', P .. 'deliveries-of', owner, 1)
  call('SADD', P .. 'hosts', host)
  call('ZADD', P .. 'due:' .. host, now, delivery)
end

function S.move_job(id, old, new, now)
  local key = S.job_key(id)
  call('HSET', key, 'state', new)
  if new == 'running' and S.number(id, 'started') < tonumber(now) then
    call('HSET', key, 'started', now)
  end
  if new == 'cancelling' then
    call('SADD', P .. 'cancelling', id)
  end
  if S.is_ended(new) then
    call('HSET', key, 'ended', now)
    if call('HGET', S.batch_key(id), 'ended') ~= '0' then -- else its batch has still to write its files from it
      call('ZADD', P .. 'ended', now, id)
    end
    for _, name in ipairs({ 'late', 'age', 'sources' }) do
      call('ZREM', P .. name, id)
    end
    call('SREM', P .. 'cancelling', id)
  end
  S.count_job(old, -1)
  S.count_job(new, 1)
  S.deliver(id, new, now)
  S.tell(id, new == 'cancelling' and 'c' or '')
end

-- How a job ends whose last item has ended; as `protocol.jobs.job.ended_state` says.
function S.ended_state(id, state)
  local cancelled, expired, succeeded, failed =
    S.number(id, 'cancelled'), S.number(id, 'expired'), S.number(id, 'succeeded'), S.number(id, 'failed')
  if state == 'cancelling' or cancelled > 0 then
    return 'cancelled'
  end
  if expired > 0 then
    return 'expired'
  end
  return (succeeded > 0 or failed == 0) and 'succeeded' or 'failed'
end

-- End a job that has no item left, by legal moves.
function S.end_job(id, new, now)
  local old = S.field(id, 'state')
  if new == 'succeeded' and S.number(id, 'failed') == 0 then
    call('HSET', S.job_key(id), 'error', '')
  end
  if old == 'queued' and new ~= 'running' and new ~= 'cancelled' and new ~= 'expired' then
    S.move_job(id, old, 'running', now)
    old = 'running'
  end
  if old == 'running' and new == 'cancelled' then
    S.move_job(id, old, 'cancelling', now)
    old = 'cancelling'
  end
  S.move_job(id, old, new, now)
end

-- End a job whose last item has ended, but one to which more may come; returns whether it has ended.
function S.end_if_done(id, now)
  local state, queued, running, source = unpack(call('HMGET', S.job_key(id), 'state', 'queued', 'running', 'source'))
  if S.is_ended(state) then
    return true
  end
  if tonumber(queued) > 0 or tonumber(running) > 0 or source ~= '' then
    return false
  end
  S.end_job(id, S.ended_state(id, state), now)
  return true
end

function S.forget(id)
  local owner, kind, state, size, key =
    unpack(call('HMGET', S.job_key(id), 'owner', 'kind', 'state', 'bytes', 'idempotency_key'))
  if not owner then
    call('ZREM', P .. 'ended', id)
    return
  end
  call('UNLINK', S.job_key(id), S.items_key(id), S.names_key(id), S.requests_key(id), S.results_key(id))
  call('ZREM', S.list_key(kind, owner), id)
  call('ZREM', P .. 'ended', id)
  if key and key ~= '' then
    call('HDEL', P .. 'keys-of:' .. owner, key)
  end
  call('DECRBY', P .. 'bytes', size)
  S.count_job(state, -1)
end

-- Forget jobs that have ended, the oldest first, then files that batches have read or given, until so many bytes more
-- have room. Returns '' where there is room, 'more' where this is to be called again, else 'full' and nothing was
-- forgotten.
function S.make_room(size, limit)
  local held = tonumber(call('GET', P .. 'bytes') or 0)
  if held + size <= limit then
    return ''
  end
  if size > limit then
    return 'full'
  end
  local jobs = call('ZRANGE', P .. 'ended', 0, MOST_AT_ONCE - 1)
  local files = #jobs < MOST_AT_ONCE and call('ZRANGE', P .. 'spent', 0, MOST_AT_ONCE - 1) or {}
  local forgotten = {}
  for place = 1, #jobs + #files do
    local job, file = jobs[place], files[place - #jobs]
    held = held - (job and S.number(job, 'bytes') or tonumber(call('HGET', S.file_key(file), 'bytes') or 0))
    table.insert(forgotten, job and { S.forget, job } or { S.forget_file, file })
    if held + size <= limit then
      break
    end
  end
  local is_enough = held + size <= limit
  local is_more = #jobs == MOST_AT_ONCE or #files == MOST_AT_ONCE
  if not is_enough and not is_more then
    return 'full'
  end
  for _, each in ipairs(forgotten) do
    each[1](each[2])
  end
  return is_enough and '' or 'more'
end
