-- Calls on batches and their files, whose contents are strings of their own.

-- What a record that a client can make counts beside what is in it.
local ROW_BYTES = 512
local FILE_FIELDS = { 'id', 'owner', 'purpose', 'name', 'payload', 'bytes', 'created', 'expires' }

function S.batch_key(id) return P .. 'batch:' .. id end
function S.payload_key(name) return P .. 'payload:' .. name end
function S.reads_key(file) return P .. 'reads:' .. file end

function S.count_total(more)
  call('INCRBY', P .. 'bytes', string.format('%.0f', more))
end

-- Contents that are written, and not kept yet, count as if they were. Those of a server that ends are dropped.

function C.append(name, data, limit, is_result)
  if is_result ~= '1' then
    local room = S.make_room(tonumber(call('GET', P .. 'uploading') or 0) + #data, tonumber(limit))
    if room ~= '' then
      return { room, call('GET', P .. 'bytes') or '0' }
    end
  else
    S.past_memory()
  end
  call('APPEND', S.payload_key(name), data)
  call('HINCRBY', S.uploads_key(SERVER), name, #data)
  call('INCRBY', P .. 'uploading', #data)
  return { 'made' }
end

function S.end_upload(server, name)
  call('DECRBY', P .. 'uploading', call('HGET', S.uploads_key(server), name) or 0)
  call('HDEL', S.uploads_key(server), name)
end

function C.discard(name)
  S.past_memory()
  if call('HEXISTS', S.uploads_key(SERVER), name) == 1 then
    S.end_upload(SERVER, name)
    call('UNLINK', S.payload_key(name))
  end
end

function S.keep_file(values)
  local id, owner, purpose, _, payload, size, created, expires = unpack(values)
  local fields = {}
  for place, name in ipairs(FILE_FIELDS) do
    table.insert(fields, name)
    table.insert(fields, values[place])
  end
  call('HSET', S.file_key(id), unpack(fields))
  call('ZADD', P .. 'files-of:' .. owner, 0, id)
  call('ZADD', P .. 'files-by-expiry', expires, id)
  if purpose == 'batch_output' then
    call('ZADD', P .. 'spent', created, id)
  end
  S.count_total(tonumber(size) + ROW_BYTES)
  S.end_upload(SERVER, payload)
end

function C.keep_file(limit, ...)
  local values = { ... }
  if call('EXISTS', S.file_key(values[1])) == 1 then -- whoever kept it was not told
    return { 'made' }
  end
  local room = S.make_room(tonumber(values[6]) + ROW_BYTES, tonumber(limit))
  if room ~= '' then
    return { room, call('GET', P .. 'bytes') or '0' }
  end
  S.keep_file(values)
  return { 'made' }
end

function S.file(id, owner)
  local fields = call('HMGET', S.file_key(id), unpack(FILE_FIELDS))
  return fields[2] == owner and fields
end

function C.find_file(id, owner)
  return S.file(id, owner)
end

-- As `C.jobs`.
function C.files(owner, purpose, after, limit, is_ascending)
  local key, ids = P .. 'files-of:' .. owner, nil
  local from = after ~= '' and '(' .. after
  if is_ascending == '1' then
    ids = call('ZRANGEBYLEX', key, from or '-', '+', 'LIMIT', 0, CHUNK)
  else
    ids = call('ZREVRANGEBYLEX', key, from or '+', '-', 'LIMIT', 0, CHUNK)
  end
  local found = {}
  for _, id in ipairs(ids) do
    local file = S.file(id, owner)
    if file and (purpose == '' or file[3] == purpose) then
      table.insert(found, file)
      if #found == tonumber(limit) then
        return { '', found }
      end
    end
  end
  return { #ids == CHUNK and ids[#ids] or '', found }
end

function S.forget_file(id)
  local owner, payload, size = unpack(call('HMGET', S.file_key(id), 'owner', 'payload', 'bytes'))
  if owner then
    call('UNLINK', S.file_key(id), S.payload_key(payload))
    call('ZREM', P .. 'files-of:' .. owner, id)
    S.count_total(-tonumber(size) - ROW_BYTES)
  end
  call('ZREM', P .. 'files-by-expiry', id)
  call('ZREM', P .. 'spent', id)
end

function C.remove_file(id, owner)
  if not S.file(id, owner) then
    return { 'none' }
  end
  local reader = call('SRANDMEMBER', S.reads_key(id))
  if reader then
    return { 'read', reader }
  end
  S.past_memory()
  S.forget_file(id)
  return { 'removed' }
end

function C.read_file(payload, start, size)
  local key = S.payload_key(payload)
  if call('EXISTS', key) == 0 then
    return false
  end
  return call('GETRANGE', key, start, tonumber(start) + tonumber(size) - 1)
end

function C.add_batch(id, owner, input, record, key, fingerprint, has_webhook, limit, most_deliveries)
  local known = key ~= '' and call('HGET', P .. 'batch-keys-of:' .. owner, key)
  if known and known ~= id then
    local found = call('HMGET', S.batch_key(known), 'record', 'fingerprint')
    return found[2] == fingerprint and { 'known', found[1] } or { 'mismatch' }
  end
  local record_there = call('HGET', S.batch_key(id), 'record')
  if record_there and (known or key == '') then -- whoever made it was not told
    return { 'made', record_there }
  end
  if not S.file(input, owner) then
    return { 'gone' }
  end
  if has_webhook == '1' and tonumber(call('HGET', P .. 'deliveries-of', owner) or 0) >= tonumber(most_deliveries) then
    return { 'deliveries' }
  end
  local room = S.make_room(#record + ROW_BYTES, tonumber(limit))
  if room ~= '' then
    return { room, call('GET', P .. 'bytes') or '0' }
  end
  call('HSET', S.batch_key(id), 'owner', owner, 'input', input, 'record', record, 'ended', 0, 'holder', SERVER,
    'idempotency_key', key, 'fingerprint', fingerprint)
  if key ~= '' then
    call('HSET', P .. 'batch-keys-of:' .. owner, key, id)
  end
  call('ZADD', P .. 'batches-of:' .. owner, 0, id)
  call('ZADD', P .. 'batches-left', call('INCR', P .. 'number'), id)
  call('SADD', S.reads_key(input), id)
  call('ZREM', P .. 'spent', input)
  call('ZREM', P .. 'files-by-expiry', input)
  S.count_total(#record + ROW_BYTES)
  return { 'made', record }
end

function C.find_batch(id, owner, has_owner)
  local record, found = unpack(call('HMGET', S.batch_key(id), 'record', 'owner'))
  return (has_owner ~= '1' or found == owner) and record
end

function C.batches(owner, after, limit)
  local highest = after == '' and '+' or '(' .. after
  local found = {}
  for _, id in ipairs(call('ZREVRANGEBYLEX', P .. 'batches-of:' .. owner, highest, '-', 'LIMIT', 0, limit)) do
    table.insert(found, call('HGET', S.batch_key(id), 'record'))
  end
  return found
end

function C.unended_batches()
  S.past_memory()
  local found = {}
  for _, id in ipairs(call('ZRANGE', P .. 'batches-left', 0, -1)) do
    local holder, record = unpack(call('HMGET', S.batch_key(id), 'holder', 'record'))
    if holder == SERVER or not call('ZSCORE', P .. 'servers', holder) then
      call('HSET', S.batch_key(id), 'holder', SERVER)
      table.insert(found, record)
    end
  end
  return found
end

-- `...` are the delivery of its end, where there is one: state, URL, host and job; then the values of files.
function C.change_batch(id, old, new, ended, kept_until, state, url, host, job, ...)
  local key = S.batch_key(id)
  local record, owner, input, was_ended = unpack(call('HMGET', key, 'record', 'owner', 'input', 'ended'))
  if not record then
    return { 'none' }
  end
  if record == new and (ended ~= '0') == (was_ended ~= '0') then -- nothing is changed, or whoever did was not told
    return { 'changed' }
  end
  if was_ended ~= '0' then
    return { 'ended', record }
  end
  if record ~= old then
    return { 'again' }
  end
  S.past_memory()
  call('HSET', key, 'record', new, 'ended', ended)
  S.count_total(#new - #record)
  local values = { ... }
  for place = 1, #values, #FILE_FIELDS do
    S.keep_file({ unpack(values, place, place + #FILE_FIELDS - 1) })
  end
  if ended ~= '0' then
    call('ZREM', P .. 'batches-left', id)
    call('ZADD', P .. 'batches-by-expiry', kept_until, id)
    S.spend(id, input, ended)
    if state ~= '' then
      S.keep_delivery(id, owner, state, url, host, job, ended)
    end
  end
  return { 'changed' }
end

-- A batch has ended: its job is not needed any more, and its input may be forgotten where there is no room.
function S.spend(id, input, ended)
  call('SREM', S.reads_key(input), id)
  local expires = call('HGET', S.file_key(input), 'expires')
  if expires and call('EXISTS', S.reads_key(input)) == 0 then
    call('ZADD', P .. 'spent', ended, input)
    call('ZADD', P .. 'files-by-expiry', expires, input)
  end
  if S.is_ended(S.field(id, 'state')) then
    S.forget(id)
  end
end

-- Files and batches that were kept for long enough, some of them.
function S.forget_old(now)
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'files-by-expiry', '-inf', now, 'LIMIT', 0, MOST_AT_ONCE)) do
    S.forget_file(id)
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'batches-by-expiry', '-inf', now, 'LIMIT', 0, MOST_AT_ONCE)) do
    local owner, record, key = unpack(call('HMGET', S.batch_key(id), 'owner', 'record', 'idempotency_key'))
    call('ZREM', P .. 'batches-by-expiry', id)
    call('ZREM', P .. 'batches-of:' .. owner, id)
    if key ~= '' then
      call('HDEL', P .. 'batch-keys-of:' .. owner, key)
    end
    call('DEL', S.batch_key(id))
    S.count_total(-#record - ROW_BYTES)
  end
end

-- Of a server that has ended: what it was writing.
function S.drop_uploads(server)
  for _, name in ipairs(call('HKEYS', S.uploads_key(server))) do
    S.end_upload(server, name)
    call('UNLINK', S.payload_key(name))
  end
end
