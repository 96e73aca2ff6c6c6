-- Calls on jobs with a source. One server takes their rows there and back; that of one which has ended another does.

function S.is_held_elsewhere(id)
  local holder = S.field(id, 'holder')
  return holder ~= SERVER and call('ZSCORE', P .. 'servers', holder)
end

function S.progress(id)
  return call('HMGET', S.job_key(id), 'position', 'is_read', 'written')
end

-- Never back: a server that was not told of the last step comes with an earlier one.
function S.keep_progress(id, position, row, is_read, written)
  local key = S.job_key(id)
  if tonumber(row) >= S.number(id, 'row') then
    call('HSET', key, 'row', row, 'position', position)
  end
  if is_read == '1' then
    call('HSET', key, 'is_read', 1)
  end
  if tonumber(written) > S.number(id, 'written') then
    call('HSET', key, 'written', written)
  end
end

function C.sources()
  S.past_memory()
  local found = {}
  for _, id in ipairs(call('ZRANGE', P .. 'sources', 0, -1)) do
    if not S.is_held_elsewhere(id) then
      call('HSET', S.job_key(id), 'holder', SERVER)
      table.insert(found, { S.job(id), S.progress(id) })
    end
  end
  return found
end

function C.extend(id, position, row, is_read, written, error, now, limit, size, count)
  local state = S.field(id, 'state')
  if state == '' or S.is_ended(state) or state == 'cancelling' then
    return { 'kept', state ~= '' and S.job(id) }
  end
  if S.is_held_elsewhere(id) then
    return { 'lost' }
  end
  count = tonumber(count)
  local known = S.number(id, 'row') - (tonumber(row) - count)
  if count > 0 and known < 0 then
    return { 'lost' }
  end
  if count > known then
    local room = S.make_room(tonumber(size), tonumber(limit))
    if room ~= '' then
      return { room, call('GET', P .. 'bytes') or '0' }
    end
    call('HSET', S.job_key(id), 'holder', SERVER)
    S.add_items(id, tonumber(row) - count + known, FIRST + 10 + 5 * known, count - known, now)
    call('ZADD', P .. 'late', S.field(id, 'deadline'), id)
  end
  S.keep_progress(id, position, row, is_read, written)
  if error ~= '' then
    call('HSET', S.job_key(id), 'error', error)
  end
  S.tell(id, count > 0 and 'n' or '')
  return { 'kept', S.job(id) }
end

-- Forget items from `first` on before `before`, which have ended.
function S.forget_items(id, first, before)
  local size = 0
  for start = first, before - 1, CHUNK do
    local places = {}
    for index = start, math.min(start + CHUNK, before) - 1 do
      table.insert(places, index)
    end
    for _, packed in ipairs(call('HMGET', S.items_key(id), unpack(places))) do
      if packed then
        local record = cmsgpack.unpack(packed)
        size = size + record[REQUEST_BYTES] + record[RESULT_BYTES]
      end
    end
    for _, key in ipairs({ S.items_key(id), S.names_key(id), S.requests_key(id), S.results_key(id) }) do
      call('HDEL', key, unpack(places))
    end
  end
  S.count_bytes(id, -size)
end

function C.drain(id, position, row, is_read, written)
  if S.field(id, 'state') == '' then
    return { 'kept', false }
  end
  if S.is_held_elsewhere(id) then
    return { 'lost' }
  end
  S.past_memory()
  S.forget_items(id, S.number(id, 'written'), math.min(tonumber(written), S.number(id, 'next')))
  S.keep_progress(id, position, row, is_read, written)
  S.tell(id, '')
  return { 'kept', S.job(id) }
end

function C.close_source(id, state, error, now)
  local old = S.field(id, 'state')
  if old == '' or S.is_ended(old) then
    return { 'kept', old ~= '' and S.job(id) }
  end
  if S.is_held_elsewhere(id) then
    return { 'lost' }
  end
  S.past_memory()
  S.end_queued(id, 'cancelled')
  if S.number(id, 'running') > 0 then
    return { 'kept', S.job(id) }
  end
  S.forget_items(id, S.number(id, 'written'), S.number(id, 'next'))
  if error ~= '' then
    call('HSET', S.job_key(id), 'error', error)
  end
  local new = old == 'cancelling' and 'cancelled' or (state ~= '' and state or S.ended_state(id, old))
  S.end_job(id, new, now)
  return { 'kept', S.job(id) }
end
