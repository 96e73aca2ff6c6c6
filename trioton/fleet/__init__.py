"""`trioton fleet`: several whole servers behind one address.

    clients → HAProxy → replicas (servers, each a process of its own)
                 │ what concerns all of them
                 └──→ control → every replica

Requests for models go from HAProxy straight to a replica. Loads, unloads, the index and statistics go to the
supervisor's control, which asks every replica and answers for all. The supervisor starts and ends replicas by a
`driver`, and says to HAProxy by its admin socket which of them take requests.
"""
