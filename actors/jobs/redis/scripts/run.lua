-- The call that this run of the script is. Items, of which there are many, it reads from ARGV itself.

return C[ARGV[1]](unpack(ARGV, FIRST, math.min(#ARGV, MOST_UNPACKED)))
