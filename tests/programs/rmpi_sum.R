# What each rank adds up with the others, in R.
library(Rmpi)

rank <- mpi.comm.rank(0)
sum <- mpi.allreduce(as.integer(rank), type = 1, op = "sum", comm = 0)
cat(sprintf("%d of %d: sum %d\n", rank, mpi.comm.size(0), sum))
invisible(mpi.finalize())
