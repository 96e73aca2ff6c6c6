-- Calls on jobs: made, found, listed, cancelled, removed, expired.

local C = {}

-- Items behind those that a job has. From ARGV[from] on there are five values of each: model, names, request, whether
-- there is one, and the error that it has failed with.
function S.add_items(id, first, from, count, now)
  local items, names, requests, size, failed = {}, {}, {}, 0, 0
  for place = 0, count - 1 do
    local model, name, request, has_request, error = unpack(ARGV, from + 5 * place, from + 5 * place + 4)
    local index = first + place
    local has_failed = error ~= ''
    local entry = ''
    if has_failed then
      failed = failed + 1
    else
      entry = S.enqueue(id, index, model)
    end
    local record = { has_failed and 'failed' or 'queued', 0, 0, 0, tonumber(now), entry, '', error, 0, #request, model }
    table.insert(items, index)
    table.insert(items, cmsgpack.pack(record))
    table.insert(names, index)
    table.insert(names, name)
    if has_request == '1' then
      table.insert(requests, index)
      table.insert(requests, request)
    end
    size = size + #request
  end
  S.in_chunks(items, function(...) call('HSET', S.items_key(id), ...) end)
  S.in_chunks(names, function(...) call('HSET', S.names_key(id), ...) end)
  S.in_chunks(requests, function(...) call('HSET', S.requests_key(id), ...) end)
  call('HINCRBY', S.job_key(id), 'queued', count - failed)
  call('HINCRBY', S.job_key(id), 'failed', failed)
  call('HSET', S.job_key(id), 'next', first + count)
  S.count_bytes(id, size)
end

function C.add(id, owner, model, version, now, deadline, metadata, key, fingerprint, kind, source, webhook_url,
               webhook_host, webhook_states, limit, most_deliveries, size, count)
  if call('EXISTS', S.job_key(id)) == 1 then -- whoever made it was not told
    return { 'made', S.job(id) }
  end
  if key ~= '' then
    local known = call('HGET', P .. 'keys-of:' .. owner, key)
    if known then
      local same = S.field(known, 'fingerprint') == fingerprint
      return same and { 'known', S.job(known) } or { 'mismatch' }
    end
  end
  if webhook_states ~= '' then
    if tonumber(call('HGET', P .. 'deliveries-of', owner) or 0) >= tonumber(most_deliveries) then
      return { 'deliveries' }
    end
  end
  local room = S.make_room(tonumber(size), tonumber(limit))
  if room ~= '' then
    return { room, call('GET', P .. 'bytes') or '0' }
  end
  call('HSET', S.job_key(id), 'id', id, 'owner', owner, 'model', model, 'version', version, 'state', 'queued',
    'queued', 0, 'running', 0, 'succeeded', 0, 'failed', 0, 'cancelled', 0, 'expired', 0, 'created', now,
    'deadline', deadline, 'started', 0, 'ended', 0, 'bytes', 0, 'metadata', metadata, 'error', '', 'kind', kind,
    'source', source, 'written', 0, 'next', 0)
  if key ~= '' then
    call('HSET', S.job_key(id), 'idempotency_key', key, 'fingerprint', fingerprint)
    call('HSET', P .. 'keys-of:' .. owner, key, id)
  end
  if webhook_states ~= '' then
    call('HSET', S.job_key(id), 'webhook_url', webhook_url, 'webhook_host', webhook_host,
      'webhook_states', webhook_states)
  end
  call('ZADD', S.list_key(kind, owner), 0, id)
  call('ZADD', P .. 'late', deadline, id)
  call('ZADD', P .. 'age', now, id)
  S.count_job('queued', 1)
  if source ~= '' then
    call('HSET', S.job_key(id), 'holder', SERVER, 'row', 0, 'position', '', 'is_read', 0)
    call('ZADD', P .. 'sources', call('INCR', P .. 'number'), id)
  end
  S.add_items(id, 0, FIRST + 18, tonumber(count), now)
  S.tell(id, 'n')
  return { 'made', S.job(id) }
end

function C.find(id, owner, has_owner)
  local job = S.job(id)
  if not job[1] or (has_owner == '1' and job[2] ~= owner) then
    return false
  end
  return job
end

-- Those before `after`, the newest first: up to `limit`, and the last that was looked at; '' where there are no more.
function C.jobs(owner, kind, states, model, after, limit)
  local highest = after == '' and '+' or '(' .. after
  local ids = call('ZREVRANGEBYLEX', S.list_key(kind, owner), highest, '-', 'LIMIT', 0, CHUNK)
  local found = {}
  for _, id in ipairs(ids) do
    local job = S.job(id)
    local is_wanted = (states == '' or string.find(states, ',' .. job[5] .. ',', 1, true))
      and (model == '' or job[3] == model)
    if is_wanted then
      table.insert(found, job)
      if #found == tonumber(limit) then
        return { '', found }
      end
    end
  end
  return { #ids == CHUNK and ids[#ids] or '', found }
end

-- Of each: index, record, names, and result. Some bytes of results, or one.
function C.items(id, first, limit, results, most_bytes)
  local base, next = unpack(call('HMGET', S.job_key(id), 'written', 'next'))
  local found, size = {}, 0
  if not next then
    return found
  end
  for index = math.max(tonumber(first), tonumber(base)), tonumber(next) - 1 do
    local packed = call('HGET', S.items_key(id), index)
    if packed then
      local result = results == '1' and call('HGET', S.results_key(id), index)
      table.insert(found, { index, packed, call('HGET', S.names_key(id), index), result })
      size = size + (result and #result or 0)
      if #found == tonumber(limit) or size > tonumber(most_bytes) then
        break
      end
    end
  end
  return found
end

function C.cancel(id, owner, now)
  local job = C.find(id, owner, '1')
  if not job or S.is_ended(job[5]) or job[5] == 'cancelling' then
    return job
  end
  S.past_memory()
  S.end_queued(id, 'cancelled')
  if job[5] == 'queued' and job[20] ~= '' then -- what is done of it is still to be written
    S.move_job(id, 'queued', 'running', now)
    job[5] = 'running'
  end
  if job[5] == 'running' then
    S.move_job(id, 'running', 'cancelling', now)
  end
  S.end_if_done(id, now)
  return S.job(id)
end

function C.remove(id, owner)
  local job = C.find(id, owner, '1')
  if not job or not S.is_ended(job[5]) then
    return 0
  end
  S.past_memory()
  S.forget(id)
  S.tell(id, '')
  return 1
end

function C.expire(now, before)
  S.past_memory()
  local ended, items = {}, 0
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'late', '-inf', now, 'LIMIT', 0, MOST_AT_ONCE)) do
    local queued = S.number(id, 'queued')
    if items > 0 and items + queued > MOST_ITEMS then
      break
    end
    items = items + queued
    call('ZREM', P .. 'late', id) -- put there again where an item is queued again
    if queued > 0 then
      S.end_queued(id, 'expired')
      if S.end_if_done(id, now) then
        table.insert(ended, id)
      end
      S.tell(id, '')
    end
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'ended', '-inf', before, 'LIMIT', 0, MOST_AT_ONCE)) do
    S.forget(id)
  end
  S.forget_old(now)
  return ended
end

function C.figures()
  local oldest = call('ZRANGE', P .. 'age', 0, 0, 'WITHSCORES')
  return { call('HGETALL', P .. 'counts'), oldest[2] or '0', call('GET', P .. 'bytes') or '0' }
end

function C.secret(made)
  call('SETNX', P .. 'secret', made)
  return call('GET', P .. 'secret')
end
