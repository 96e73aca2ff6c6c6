-- Finds the id of a request's sequence in its body, and puts it into txn.sequence.
--
-- body_sequence: JSON of the inference protocol, perhaps with binary tensors behind it.
-- message_sequence: a ModelInferRequest of gRPC.
-- stream_sequence: the first one of a stream, if that comes soon.
-- Only what HAProxy has buffered is looked at, which is the beginning of a large body.

local STREAM_TRIES, STREAM_PAUSE_MS = 20, 5

local function keep(txn, id)
  if id and id ~= "" and id ~= "0" then txn:set_var("txn.sequence", id) end
end

core.register_action("body_sequence", {"http-req"}, function(txn)
  local body = txn.sf:req_body()
  if not body then return end
  local after = select(2, body:find('"sequence_id"%s*:%s*'))
  if after then keep(txn, body:match('^(%d+)', after + 1) or body:match('^"([^"]*)"', after + 1)) end
end, 0)

local function varint(text, at)
  local value, shift = 0, 0
  while shift < 64 do
    local byte = text:byte(at)
    if not byte then return nil end
    at = at + 1
    value = value | ((byte & 0x7f) << shift)
    if byte < 0x80 then return value, at end
    shift = shift + 7
  end
  return nil
end

-- Calls visit(field, value) for a number and visit(field, first, last) for bytes, until that returns true. `last` may
-- lie behind the end of the text.
local function each_field(text, at, stop, visit)
  while at and at <= stop do
    local tag, value
    tag, at = varint(text, at)
    if not tag then return end
    local field, kind = tag >> 3, tag & 7
    if kind == 0 then
      value, at = varint(text, at)
      if not value or visit(field, value) then return end
    elseif kind == 2 then
      value, at = varint(text, at)
      if not value or value < 0 or visit(field, at, at + value - 1) then return end
      at = at + value
    elseif kind == 1 then at = at + 8
    elseif kind == 5 then at = at + 4
    else return end
  end
end

-- An InferParameter: 2 is int64, 3 a string, 5 uint64.
local function parameter(text, first, last)
  local found
  each_field(text, first, last, function(field, start, stop)
    if stop and field == 3 then found = text:sub(start, stop)
    elseif not stop and (field == 2 or field == 5) then found = string.format("%u", start) end
  end)
  return found
end

-- Parameters are field 4, a map; tensors follow from 5 on.
local function sequence_in(text)
  local id
  if #text < 6 or text:byte(1) ~= 0 then return nil end
  each_field(text, 6, #text, function(field, first, last)
    if field >= 5 then return true end
    if field ~= 4 or not last then return false end
    local key, value
    each_field(text, first, math.min(last, #text), function(inner, start, stop)
      if inner == 1 and stop then key = text:sub(start, stop)
      elseif inner == 2 and stop then value = parameter(text, start, stop) end
    end)
    if key ~= "sequence_id" then return false end
    id = value
    return true
  end)
  return id
end

core.register_action("message_sequence", {"http-req"}, function(txn)
  local body = txn.sf:req_body()
  if body then keep(txn, sequence_in(body)) end
end, 0)

core.register_action("stream_sequence", {"http-req"}, function(txn)
  for _ = 1, STREAM_TRIES do
    local body = txn.sf:req_body()
    if body and #body > 5 then
      keep(txn, sequence_in(body))
      return
    end
    core.msleep(STREAM_PAUSE_MS)
  end
end, 0)
