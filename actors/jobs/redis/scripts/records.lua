-- Records of the job store in Redis: names of keys, jobs and items as they lie there, and the counts beside them.
--
-- One script is made of these files, and run for every call: KEYS[1] is what the names of all keys begin with, ARGV[1]
-- the call, ARGV[2] a text that no other call has, ARGV[3] the server that calls, and the rest are the call's own.
-- A call that may run out of memory writes first what Redis refuses then; every other begins with `past_memory`.

local P, NONCE, SERVER = KEYS[1], ARGV[2], ARGV[3]
-- Where the call's own arguments begin, and how many Lua takes as such.
local FIRST, MOST_UNPACKED = 4, 7000
local call = redis.call
local S = {}

local JOB_FIELDS = {
  'id', 'owner', 'model', 'version', 'state', 'queued', 'running', 'succeeded', 'failed', 'cancelled', 'expired',
  'created', 'deadline', 'started', 'ended', 'bytes', 'metadata', 'error', 'kind', 'source', 'written',
}

-- An item's record is an array of these.
local STATE, CLAIM, ATTEMPT, INTERRUPTED, NOT_BEFORE, ENTRY, HOLDER, ERROR, RESULT_BYTES, REQUEST_BYTES, MODEL =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11

-- So many ends of servers while it ran make an item suspect of causing them.
local SUSPECT = 2
-- Arguments of one command.
local CHUNK = 500
-- Jobs that no call looks at more of at once.
local MOST_AT_ONCE = 64
-- Items that no call changes more of at once, but those of one job.
local MOST_ITEMS = 20000
-- Changes that are kept for servers which listen.
local MOST_CHANGES = 8192
-- Between two changes of one job that are told, while only its counts change.
local TOLD_SECONDS = 0.1

function S.past_memory()
  -- Once a script has written, Redis lets it go on however much memory is used: what runs ends, and room is made.
  call('DEL', P .. 'nothing')
end

function S.job_key(id) return P .. 'job:' .. id end
function S.items_key(id) return P .. 'items:' .. id end
function S.names_key(id) return P .. 'names:' .. id end
function S.requests_key(id) return P .. 'requests:' .. id end
function S.results_key(id) return P .. 'results:' .. id end
function S.queue_key(model) return P .. 'queue:' .. model end
function S.later_key(model) return P .. 'later:' .. model end
function S.file_key(id) return P .. 'file:' .. id end
function S.uploads_key(server) return P .. 'uploads:' .. server end
function S.list_key(kind, owner) return P .. 'list:' .. kind .. ':' .. owner end

function S.job(id)
  return call('HMGET', S.job_key(id), unpack(JOB_FIELDS))
end

function S.field(id, name)
  return call('HGET', S.job_key(id), name) or ''
end

function S.number(id, name)
  return tonumber(call('HGET', S.job_key(id), name) or 0) or 0
end

function S.is_ended(state)
  return state == 'succeeded' or state == 'failed' or state == 'cancelled' or state == 'expired'
end

function S.item(id, index)
  local packed = call('HGET', S.items_key(id), index)
  return packed and cmsgpack.unpack(packed)
end

function S.keep_item(id, index, record)
  call('HSET', S.items_key(id), index, cmsgpack.pack(record))
end

function S.member(id, index)
  return id .. ':' .. string.format('%09d', index)
end

function S.split(member)
  local id, index = string.match(member, '^(.*):(%d+)$')
  return id, tostring(tonumber(index))
end

-- All of a long list, as arguments of commands that take so many.
function S.in_chunks(list, run)
  for first = 1, #list, CHUNK do
    run(unpack(list, first, math.min(first + CHUNK - 1, #list)))
  end
end

function S.count_job(state, more)
  call('HINCRBY', P .. 'counts', state, more)
end

function S.count_bytes(id, more)
  if more ~= 0 then
    call('HINCRBY', S.job_key(id), 'bytes', string.format('%.0f', more))
    call('INCRBY', P .. 'bytes', string.format('%.0f', more))
  end
end

function S.count_items(id, old, new, moved)
  if moved > 0 then
    call('HINCRBY', S.job_key(id), old, -moved)
    call('HINCRBY', S.job_key(id), new, moved)
  end
end

function S.tell(id, what)
  call('XADD', P .. 'changes', 'MAXLEN', '~', MOST_CHANGES, '*', 'j', id, 'w', what, 's', SERVER)
end

-- What happens often is told now and then.
function S.tell_counts(id, now)
  local key = S.job_key(id)
  if tonumber(now) - (tonumber(call('HGET', key, 'told') or 0) or 0) >= TOLD_SECONDS then
    call('HSET', key, 'told', now)
    S.tell(id, '')
  end
end

-- The queues of models: an item has one entry in the stream of its model from its beginning to its end. Its entry is
-- new, or pending for the server that runs it, or for `later` while it waits to be run again.

function S.open_queue(model)
  local key = S.queue_key(model)
  if call('SADD', P .. 'models', model) == 1 then
    call('XGROUP', 'CREATE', key, 'servers', '0', 'MKSTREAM')
  end
  return key
end

function S.close_queue(model)
  local key = S.queue_key(model)
  if call('XLEN', key) == 0 then
    call('DEL', key)
    call('SREM', P .. 'models', model)
  end
end

function S.enqueue(id, index, model)
  return call('XADD', S.open_queue(model), '*', 'j', id, 'i', index)
end

-- An item that is running is to be run again. `record` is changed, and to be kept by the caller.
function S.put_off(id, index, record, not_before)
  record[STATE], record[NOT_BEFORE], record[HOLDER] = 'queued', tonumber(not_before), ''
  call('XCLAIM', S.queue_key(record[MODEL]), 'servers', 'later', 0, record[ENTRY], 'JUSTID')
  local key = record[INTERRUPTED] >= SUSPECT and P .. 'suspects' or S.later_key(record[MODEL])
  call('ZADD', key, not_before, S.member(id, index))
  call('ZADD', P .. 'late', S.field(id, 'deadline'), id)
end

-- Items of a job have ended that were queued or ran: their entries go. `found` are pairs of index and record.
function S.dequeue(id, found)
  local entries, members = {}, {}
  for _, each in ipairs(found) do
    local record = each[2]
    entries[record[MODEL]] = entries[record[MODEL]] or {}
    members[record[MODEL]] = members[record[MODEL]] or {}
    table.insert(entries[record[MODEL]], record[ENTRY])
    table.insert(members[record[MODEL]], S.member(id, each[1]))
  end
  for model, list in pairs(entries) do
    local key = S.queue_key(model)
    S.in_chunks(list, function(...) call('XACK', key, 'servers', ...) end)
    S.in_chunks(list, function(...) call('XDEL', key, ...) end)
    S.in_chunks(members[model], function(...)
      call('ZREM', S.later_key(model), ...)
      call('ZREM', P .. 'suspects', ...)
    end)
    S.close_queue(model)
  end
end

-- An item no longer runs on the server that had it.
function S.release(record)
  call('HINCRBY', P .. 'running', record[HOLDER], -1)
  if record[INTERRUPTED] >= SUSPECT then
    call('HDEL', P .. 'alone', record[HOLDER])
  end
end

-- Items of a job by state: pairs of index and record.
function S.items_in(id, state)
  local found = {}
  local all = call('HGETALL', S.items_key(id))
  for place = 1, #all, 2 do
    local record = cmsgpack.unpack(all[place + 1])
    if record[STATE] == state then
      table.insert(found, { all[place], record })
    end
  end
  return found
end

-- What is queued of a job is not run any more; returns how many there were.
function S.end_queued(id, new)
  if S.number(id, 'queued') == 0 then
    return 0
  end
  local found = S.items_in(id, 'queued')
  S.dequeue(id, found)
  local values = {}
  for _, each in ipairs(found) do
    each[2][STATE] = new
    table.insert(values, each[1])
    table.insert(values, cmsgpack.pack(each[2]))
  end
  S.in_chunks(values, function(...) call('HSET', S.items_key(id), ...) end)
  S.count_items(id, 'queued', new, #found)
  return #found
end
