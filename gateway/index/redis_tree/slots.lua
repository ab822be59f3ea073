#!lua flags=allow-oom
-- Allocation of slots. A slot is the number under which a worker's holdings are written, from its first block
-- until it is closed or expires; a gateway that has lost its slot writes nothing. KEYS[1] names the tree;
-- ARGV[1] is the command:
--   open worker ttl fence hidden first   allocates a slot (lookups skip hidden ones); answers its number and the
--                        tree's age, which differs after the tree was lost. Closes all slots of the worker under
--                        an older fence, and with `first` (1 or 0) all others too: the caller does not know them.
--                        Number -1 where the worker has slots under a newer fence
--   keep ttl slots age   prolongs slots by `ttl` milliseconds; answers those that are not known
--   close slots age      hides slots from lookups; a sweep will remove their edges
--   state worker fence state   sets the state of the worker's stream; ignored under another fence
--   owners               answers worker, state, fence in turn, of workers that are published
--   broken head          drops an edge that does not decode, and the slots in it, so that their gateways
--                        publish all their blocks again
--   dead                 answers the slots to be swept, expired ones included
--   swept slots          frees slots without edges
-- A slot's value: expiry time (milliseconds of the server's clock, a double), 1 where it is hidden or 0,
-- worker. A worker's: fence and expiry time (doubles), state, its slots (2 bytes each).
local tree, verb = KEYS[1], ARGV[1]
local sub, pack_, unpack_, call = string.sub, struct.pack, struct.unpack, redis.call
local time = call('TIME')
local now = time[1] * 1000 + time[2] / 1000

local function each(packed)
  local slots = {}
  for i = 1, #packed, 2 do
    slots[#slots + 1] = sub(packed, i, i + 1)
  end
  return ipairs(slots)
end

local function owner_of(worker)
  local value = call('HGET', tree .. 'o', worker)
  if not value then
    return nil
  end
  local fence, till, state = unpack_('<ddB', value)
  return { fence = fence, till = till, state = state, slots = sub(value, 18) }
end

local function save(worker, owner)
  call('HSET', tree .. 'o', worker, pack_('<ddB', owner.fence, owner.till, owner.state) .. owner.slots)
end

local function retire(slot)
  call('HDEL', tree .. 's', slot)
  call('SADD', tree .. 'd', slot)
end

local function close(slot)
  local value = call('HGET', tree .. 's', slot)
  retire(slot)
  local worker = value and sub(value, 10)
  local owner = worker and owner_of(worker)
  if owner then
    local left = {}
    for _, other in each(owner.slots) do
      left[#left + 1] = other ~= slot and other or nil
    end
    owner.slots = table.concat(left)
    save(worker, owner)
  end
end

local function is_ours(age)
  return call('GET', tree .. 'a') == age
end

local function age_of()
  local age = call('GET', tree .. 'a')
  if not age then
    age = time[1] .. '.' .. time[2]
    call('SET', tree .. 'a', age)
  end
  return age
end

-- The worker's value if this fence may write it; nil where a newer fence does.
local function taken(worker, fence, is_first)
  local owner = owner_of(worker)
  if owner and owner.fence > fence and owner.till > now then
    return nil
  end
  if owner and (owner.fence ~= fence or is_first) then
    for _, slot in each(owner.slots) do
      retire(slot)
    end
    owner = nil
  end
  return owner or { fence = fence, state = 0, slots = '' }
end

if verb == 'open' then
  local worker, age = ARGV[2], age_of()
  local owner = taken(worker, tonumber(ARGV[4]), ARGV[6] == '1')
  if not owner then
    return { -1, age }
  end
  for _ = 0, 65535 do
    local number = call('INCR', tree .. 'n') % 65536
    local slot = pack_('<H', number)
    if call('HEXISTS', tree .. 's', slot) == 0 and call('SISMEMBER', tree .. 'd', slot) == 0 then
      call('HSET', tree .. 's', slot, pack_('<dB', now + ARGV[3], 1 - ARGV[5]) .. worker)
      owner.till, owner.slots = now + ARGV[3], owner.slots .. slot
      save(worker, owner)
      return { number, age }
    end
  end
  return redis.error_reply('FULL all 65,536 slots of this index are taken')
elseif verb == 'keep' then
  local gone = {}
  for _, slot in each(ARGV[3]) do
    local value = is_ours(ARGV[4]) and call('HGET', tree .. 's', slot)
    if value then
      call('HSET', tree .. 's', slot, pack_('<d', now + ARGV[2]) .. sub(value, 9))
      local owner = owner_of(sub(value, 10))
      owner.till = now + ARGV[2]
      save(sub(value, 10), owner)
    else
      gone[#gone + 1] = (unpack_('<H', slot))
    end
  end
  return gone
elseif verb == 'close' then
  for _, slot in each(is_ours(ARGV[3]) and ARGV[2] or '') do
    close(slot)
  end
elseif verb == 'state' then
  local owner = owner_of(ARGV[2])
  if owner and owner.fence == tonumber(ARGV[3]) then
    owner.state = tonumber(ARGV[4])
    save(ARGV[2], owner)
  end
elseif verb == 'owners' then
  local all, found = call('HGETALL', tree .. 'o'), {}
  for i = 1, #all, 2 do
    local fence, till, state = unpack_('<ddB', all[i + 1])
    if till > now and #all[i + 1] > 17 then
      found[#found + 1], found[#found + 2], found[#found + 3] = all[i], state, fence
    end
  end
  return found
elseif verb == 'broken' then
  for _, slot in ipairs(call('HKEYS', tree .. 's')) do
    if call('SISMEMBER', tree .. 'w' .. slot, ARGV[2]) == 1 then
      close(slot)
    end
  end
  call('DEL', tree .. 'e' .. ARGV[2])
elseif verb == 'dead' then
  local all = call('HGETALL', tree .. 's')
  for i = 1, #all, 2 do
    if unpack_('<d', all[i + 1]) <= now then
      close(all[i])
    end
  end
  all = call('HGETALL', tree .. 'o')
  for i = 1, #all, 2 do
    local _, till = unpack_('<dd', all[i + 1])
    if till <= now and #all[i + 1] == 17 then
      call('HDEL', tree .. 'o', all[i])
    end
  end
  local dead = {}
  for _, slot in ipairs(call('SMEMBERS', tree .. 'd')) do
    dead[#dead + 1] = (unpack_('<H', slot))
  end
  return dead
elseif verb == 'swept' then
  for _, slot in each(ARGV[2]) do
    call('SREM', tree .. 'd', slot)
  end
end
return 0
