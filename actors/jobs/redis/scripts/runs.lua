-- Calls on items that run: claimed, finished, and given to others when their server has ended.

local INLINE_BYTES, MOST_INLINE = 65536, 4194304
-- Models that are looked at in one call, by chance where there are more: clients may ask for any name.
local MOST_MODELS = 500

-- Mark an item as running here.
function S.take(id, index, record)
  record[STATE], record[HOLDER] = 'running', SERVER
  record[CLAIM], record[ATTEMPT] = record[CLAIM] + 1, record[ATTEMPT] + 1
  S.keep_item(id, index, record)
  call('HINCRBY', P .. 'running', SERVER, 1)
  return { id, index, record }
end

-- What has been put off, and is due: it comes before what is new.
function S.take_due(key, model, limit, now, taken)
  local found = 0
  for _, member in ipairs(call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, limit)) do
    call('ZREM', key, member)
    local id, index = S.split(member)
    local record = S.item(id, index)
    if record and record[STATE] == 'queued' then
      call('XCLAIM', S.queue_key(record[MODEL]), 'servers', SERVER, 0, record[ENTRY], 'JUSTID')
      table.insert(taken, S.take(id, index, record))
      found = found + 1
    end
  end
  return found
end

function S.take_new(model, limit, taken)
  local key = S.queue_key(model)
  while limit > 0 do
    local read = call('XREADGROUP', 'GROUP', 'servers', SERVER, 'COUNT', limit, 'STREAMS', key, '>')
    if not read then
      return
    end
    for _, entry in ipairs(read[1][2]) do
      local id, index = entry[2][2], entry[2][4]
      local record = S.item(id, index)
      if record and record[STATE] == 'queued' and record[ENTRY] == entry[1] then
        table.insert(taken, S.take(id, index, record))
        limit = limit - 1
      else -- of no item
        call('XACK', key, 'servers', entry[1])
        call('XDEL', key, entry[1])
      end
    end
  end
end

-- While an item is suspect of ending its server it runs alone on one: returns whether anything else may be taken here.
function S.take_suspect(now, taken)
  if call('HEXISTS', P .. 'alone', SERVER) == 1 then
    return false
  end
  if #call('ZRANGEBYSCORE', P .. 'suspects', '-inf', now, 'LIMIT', 0, 1) == 0 then
    return true
  end
  local taker = call('GET', P .. 'taker')
  if taker and taker ~= SERVER and call('ZSCORE', P .. 'servers', taker) then
    return true
  end
  call('SET', P .. 'taker', SERVER)
  if tonumber(call('HGET', P .. 'running', SERVER) or 0) > 0 then
    return false
  end
  call('DEL', P .. 'taker')
  if S.take_due(P .. 'suspects', '', 1, now, taken) > 0 then
    call('HSET', P .. 'alone', SERVER, S.member(taken[1][1], taken[1][2]))
    return false
  end
  return true
end

-- `...` are models and how many of each.
function C.claim(now, lease_ms, default, ...)
  S.past_memory()
  call('ZADD', P .. 'servers', 'NX', S.milliseconds() + tonumber(lease_ms), SERVER)
  local rooms, given = {}, { ... }
  for place = 1, #given, 2 do
    rooms[given[place]] = tonumber(given[place + 1])
  end
  local taken = {}
  if S.take_suspect(now, taken) then
    for _, model in ipairs(call('SRANDMEMBER', P .. 'models', MOST_MODELS)) do
      local limit = rooms[model] or tonumber(default)
      if limit > 0 then
        limit = limit - S.take_due(S.later_key(model), model, limit, now, taken)
        S.take_new(model, limit, taken)
        S.close_queue(model)
      end
    end
  end
  return S.claims(taken, now)
end

-- Move the jobs of what was taken, and say all that its server has to know.
function S.claims(taken, now)
  local counts, order = {}, {}
  for _, each in ipairs(taken) do
    local id = each[1]
    if not counts[id] then
      counts[id] = 0
      table.insert(order, id)
    end
    counts[id] = counts[id] + 1
  end
  local jobs = {}
  for _, id in ipairs(order) do
    S.count_items(id, 'queued', 'running', counts[id])
    if S.field(id, 'state') == 'queued' then
      S.move_job(id, 'queued', 'running', now)
    end
    jobs[id] = call('HMGET', S.job_key(id), 'owner', 'deadline', 'kind')
  end
  local claims, inline = {}, 0
  for _, each in ipairs(taken) do
    local id, index, record = unpack(each)
    local request = ''
    local is_inline = record[REQUEST_BYTES] <= INLINE_BYTES and inline < MOST_INLINE
    if is_inline then
      request = call('HGET', S.requests_key(id), index) or ''
      inline = inline + #request
    end
    local owner, deadline, kind = unpack(jobs[id])
    table.insert(claims, {
      id, owner, index, record[CLAIM], record[ATTEMPT], record[MODEL], deadline, record[REQUEST_BYTES], request,
      is_inline and 1 or 0, kind,
    })
  end
  return claims
end

function C.request(id, index)
  return call('HGET', S.requests_key(id), index)
end

function C.finish(id, index, claim, state, has_result, result, error, not_before, is_counted, now)
  local record = S.item(id, index)
  if not record or record[STATE] ~= 'running' or record[CLAIM] ~= tonumber(claim) then
    return false
  end
  S.past_memory()
  if state == 'queued' and S.field(id, 'state') == 'cancelling' then
    state = 'cancelled'
  end
  if is_counted ~= '1' then
    record[ATTEMPT] = record[ATTEMPT] - 1
  end
  S.release(record)
  record[ERROR] = error
  if state == 'queued' then
    S.put_off(id, index, record, not_before)
  else
    S.dequeue(id, { { index, record } })
    record[STATE] = state
    if has_result == '1' then
      call('HSET', S.results_key(id), index, result)
      record[RESULT_BYTES] = #result
    end
  end
  S.keep_item(id, index, record)
  S.count_items(id, 'running', state, 1)
  S.count_bytes(id, record[RESULT_BYTES])
  if error ~= '' then
    call('HSET', S.job_key(id), 'error', error)
  end
  if not S.end_if_done(id, now) then
    S.tell_counts(id, now)
  end
  return S.job(id)
end

-- What runs here, as the store has it: items and their claims.
function C.running()
  local found = {}
  for _, model in ipairs(call('SMEMBERS', P .. 'models')) do
    local from = '-'
    while true do
      local pending = call('XPENDING', S.queue_key(model), 'servers', from, '+', CHUNK, SERVER)
      for _, each in ipairs(pending) do
        for _, entry in ipairs(call('XRANGE', S.queue_key(model), each[1], each[1])) do
          local record = S.item(entry[2][2], entry[2][4])
          if record and record[STATE] == 'running' and record[HOLDER] == SERVER then
            table.insert(found, { entry[2][2], entry[2][4], record[CLAIM] })
          end
        end
      end
      if #pending < CHUNK then
        break
      end
      from = '(' .. pending[#pending][1]
    end
  end
  return found
end

-- Leases: a server that has not said for some time that it is there has ended. Times are those of Redis' own clock.

function S.milliseconds()
  local time = call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- A server that listens hears something.
function C.wake()
  S.past_memory()
  S.tell('', '')
end

-- Returns the servers that have ended, and the jobs that are being cancelled.
function C.beat(lease_ms)
  S.past_memory()
  local now = S.milliseconds()
  call('ZADD', P .. 'servers', now + tonumber(lease_ms), SERVER)
  return {
    call('ZRANGEBYSCORE', P .. 'servers', '-inf', now, 'LIMIT', 0, MOST_AT_ONCE),
    call('SRANDMEMBER', P .. 'cancelling', 1000),
  }
end

-- A server has ended: what ran there is queued again, cancelled with its job, or has failed where that was too often.
-- Returns how many items were queued again, and whether there are no more.
function C.recover(ended, most_interruptions, now, error)
  S.past_memory()
  local requeued, seen, jobs = 0, 0, {}
  for _, model in ipairs(call('SMEMBERS', P .. 'models')) do
    local key = S.queue_key(model)
    while call('EXISTS', key) == 1 do
      local entries = {}
      for _, each in ipairs(call('XPENDING', key, 'servers', '-', '+', CHUNK, ended)) do
        table.insert(entries, each[1])
      end
      if #entries == 0 then
        break
      end
      seen = seen + #entries
      for _, entry in ipairs(call('XCLAIM', key, 'servers', 'later', 0, unpack(entries))) do
        local id, index = entry[2][2], entry[2][4]
        jobs[id] = true
        if S.interrupt(id, index, ended, tonumber(most_interruptions), now, error) then
          requeued = requeued + 1
        end
      end
      if seen >= MOST_ITEMS then
        S.settle_interrupted(jobs, now)
        return { requeued, 0 }
      end
    end
    if call('EXISTS', key) == 1 then
      call('XGROUP', 'DELCONSUMER', key, 'servers', ended)
    end
  end
  S.settle_interrupted(jobs, now)
  for _, name in ipairs({ 'running', 'alone' }) do
    call('HDEL', P .. name, ended)
  end
  S.give_back_deliveries(ended, now)
  S.drop_uploads(ended)
  call('ZREM', P .. 'servers', ended)
  return { requeued, 1 }
end

-- Returns whether it was queued again.
function S.interrupt(id, index, ended, most, now, error)
  local record = S.item(id, index)
  if not record or record[STATE] ~= 'running' or record[HOLDER] ~= ended then
    return false
  end
  S.release(record)
  record[INTERRUPTED] = record[INTERRUPTED] + 1
  local state = S.field(id, 'state') == 'cancelling' and 'cancelled'
    or (record[INTERRUPTED] >= most and 'failed' or 'queued')
  if state == 'queued' then
    S.put_off(id, index, record, string.format('%.17g', record[NOT_BEFORE]))
  else
    S.dequeue(id, { { index, record } })
    record[STATE] = state
  end
  if state == 'failed' then
    record[ERROR] = error
    call('HSET', S.job_key(id), 'error', error)
  end
  S.keep_item(id, index, record)
  S.count_items(id, 'running', state, 1)
  return state == 'queued'
end

function S.settle_interrupted(jobs, now)
  for id in pairs(jobs) do
    if not S.end_if_done(id, now) and S.number(id, 'running') == 0 and S.field(id, 'state') == 'running' then
      S.move_job(id, 'running', 'queued', now)
    end
    S.tell(id, 'n')
  end
end
