"""Settings of RocketMQ 5.5.0 that are accepted and have no effect here, with their defaults there.

Rule: a key that gains a meaning moves to BrokerSettings; docs/reference/settings.md says so for every key.
"""

from __future__ import annotations

# Those that depend on the machine stand as a 2-core one has them: sendMessageThreadPoolNums, clientWorkerThreads, …
IGNORED: dict[str, str] = dict(
    pair.split("=", 1)
    for pair in """
    accountStatsEnable=true
    accountStatsPrintZeroValues=true ackMessageThreadPoolNums=16 ackThreadPoolQueueCapacity=100000
    adminBrokerThreadPoolNums=16 adminBrokerThreadPoolQueueCapacity=10000
    appendAckAsync=false appendCkAsync=false
    appendTopicForTimerDeleteKey=false asyncSendEnable=true autoDeleteUnusedStats=true
    autoMessageVersionOnTopicLen=true batchDispatchRequestThreadPoolNums=16 bitMapLengthConsumeQueueExt=64
    bottomMostCompressionTypeForConsumeQueueStore=zstd broadcastOffsetExpireMaxSecond=300
    broadcastOffsetExpireSecond=120
    channelNotActiveInterval=60000 checkCRCOnRecover=true checkCommitLogOffsetOnRecover=false
    cleanOfflineBrokerInterval=30000
    cleanRocksDBDirtyCQIntervalMin=60 cleanSwapedMapInterval=300000
    clearRetryTopicWhenDeleteTopic=true clientAsyncSemaphoreValue=65535 clientCallbackExecutorThreads=2
    clientChannelMaxIdleTimeSeconds=120 clientCloseSocketIfTimeout=true clientManageThreadPoolNums=32
    clientManagerThreadPoolQueueCapacity=1000000 clientOnewaySemaphoreValue=65535
    clientPooledByteBufAllocatorEnable=false clientSocketRcvBufSize=0 clientSocketSndBufSize=0
    clientWorkerThreads=4 coldDataScanEnable=false
    combineAssignOffsetCQType=default combineCQEnableCheckSelf=false
    combineCQLoadingCQTypes=default;defaultRocksDB combineCQMaxExtraSearchCommitLogFiles=3
    combineCQPreferCQType=default combineCQUseRocksdbForLmq=false commercialBaseCount=1 commercialSizePerMsg=4096
    commitCommitLogLeastPages=4 commitCommitLogThoroughInterval=200 commitIntervalCommitLog=200
    commitLogForceSwapMapInterval=43200000 commitLogRecoverMaxNum=10 commitLogSwapMapInterval=3600000
    commitLogSwapMapReserveFileNum=100
    compactionThreadNum=6 compressedRegister=false
    configManagerVersion=v1 connectTimeoutMillis=3000 consumerFallbehindThreshold=17179869184
    consumerManageThreadPoolNums=32 consumerManagerThreadPoolQueueCapacity=1000000

    correctLogicMinOffsetForceInterval=300000 correctLogicMinOffsetSleepInterval=1 dataReadAheadEnable=true
    debugLockEnable=false defaultQueryMaxNum=32
    deleteConsumeQueueFilesInterval=100
    destroyMapedFileIntervalForcibly=120000 disableCallbackExecutor=false
    disableConsumeIfConsumerReadSlowly=false disableNettyWorkerGroup=false disappearTimeAfterStart=-1
    diskFallRecorded=true
    dispatchCqCacheNum=4096 dispatchCqThreads=10 dispatchFromSenderThread=false duplicationEnable=false
    enableAcceleratedRecovery=false enableAsyncReput=true enableBatchPush=false
    enableBroadcastOffsetStore=true enableBuildConsumeQueueConcurrently=false enableCalcFilterBitMap=false
    enableCleanExpiredOffset=false enableConnectionMetrics=true
    enableCreateSysGroup=true enableDetailStat=true enableFastChannelEventProcess=false
    enableLagAndDlqMetrics=true
    enableLmqQuota=false enableLogConsumeQueueRepeatedlyBuildWhenRecover=false
    enableMessageStoreMetrics=true enableMixedMessageType=false
    enableNetWorkFlowControl=false
    enableNotifyBeforePopCalculateLag=true enablePopBatchAck=false enablePopBufferMerge=false enablePopLog=false
    enablePopMetrics=true enableReconnectForGoAway=true
    enableRegisterProducer=true enableRemotingMetrics=true enableRequestMetrics=true
    enableRocksDBLog=false enableRunningFlagsInFlush=false
    enableScheduleAsyncDeliver=false enableScheduleMessageStats=true enableShutdownGracefully=false
    enableSingleTopicRegister=false enableSkipLongAwaitingAck=false
    enableStatsMetrics=true enableTransactionMetrics=true
    endTransactionPoolQueueCapacity=100000 endTransactionThreadPoolNums=12 estimateAccumulation=true
    expectConsumerNumUseFilter=32 fastFailIfNoBufferInStorePool=false fetchControllerAddrByDnsLookup=false
    fetchNameSrvAddrByDnsLookup=false fetchNamesrvAddrByAddressServer=false
    fetchNamesrvAddrInterval=10000
    filterDataCleanTimeSpan=86400000 filterSupportRetry=false flushCommitLogLeastPages=4
    flushCommitLogThoroughInterval=10000 flushCommitLogTimed=true flushConsumeQueueLeastPages=2
    flushConsumeQueueThoroughInterval=60000 flushConsumerOffsetHistoryInterval=60000
    flushLeastPagesWhenWarmMapedFile=4096 forceRegister=true forwardTimeout=3000

    heartbeatThreadPoolNums=2 heartbeatThreadPoolQueueCapacity=50000 highSpeedMode=false
    indexFileReadEnable=true indexFileWriteEnable=true indexRocksDBEnable=false
    isBrokerContainer=false isInBrokerContainer=false
    isScanAvailableNameSrv=true isolateLogEnable=false iteratorWhenUseRocksdbConsumeQueue=true
    litePullMessageEnable=true litePullMessageThreadPoolNums=20 litePullThreadPoolQueueCapacity=100000
    loadBalanceProcessorThreadPoolNums=32
    loadBalanceThreadPoolQueueCapacity=100000 logicQueueForceSwapMapInterval=43200000
    logicQueueSwapMapInterval=3600000 logicQueueSwapMapReserveFileNum=20
    logicalDiskSpaceCleanForciblyThreshold=0.8
    mappedFileSwapEnable=true
    maxAsyncPutMessageRequests=5000 maxBatchDeleteFilesNum=50 maxChecksumRange=1073741824
    maxConsumeQueueScan=20000 maxErrorRateOfBloomFilter=20 maxFilterMessageSize=16000
    maxMsgsNumBatch=64
    maxReconnectIntervalTimeSeconds=60 maxRecoveryCommitlogFiles=30 maxRocksDBIndexQueryDays=7
    maxSlaveResendLength=268435456 maxStatsIdleTimeInMinutes=-1 maxTopicLength=127
    memTableFlushIntervalMs=3600000
    messageIndexSafe=false metricsOtelCardinalityLimit=50000
    persistConsumerOffsetIncrementally=false
    popCkMaxBufferSize=200000 popCkOffsetMaxQueueSize=20000 popCkStayBufferTime=10000 popCkStayBufferTimeOut=3000
    popConsumerFSServiceInit=true popConsumerKVServiceEnable=false popConsumerKVServiceInit=false
    popConsumerKVServiceLog=false
    popLongPollingForceNotifyInterval=800 popPollingMapExpireTimeSeconds=600
    popPollingMapSize=100000   popReviveConcurrency=32
    popReviveMaxAttemptTimes=16 popReviveMaxReturnSizePerRead=16384 popReviveSkipIfGroupAbsent=true
    printChannelGroups=false printChannelGroupsMinNum=5 processReplyMessageThreadPoolNums=20
    pullBatchMaxMessageCount=160 pullMessageThreadPoolNums=20 pullThreadPoolQueueCapacity=100000
    putConsumeQueueDataByFileChannel=true putMessageFutureThreadPoolNums=2 putMessageTimeout=8000
    putMsgIndexHightWater=600000 putThreadPoolQueueCapacity=10000 queryMessageThreadPoolNums=10
    queryThreadPoolQueueCapacity=20000 readUnCommitted=false realTimeNotifyConsumerChange=true
    realTimePersistRocksDBConfig=true recheckReputOffsetFromCq=false
    recoverConcurrently=false recoverThreadPoolNums=32 redeleteHangedFileInterval=120000
    registerBrokerTimeoutMills=24000 rejectPullConsumerEnable=false replicasPerDiskPartition=1
    replyThreadPoolQueueCapacity=10000 reviveAckWaitMs=180000
    reviveMaxSlow=3 reviveScanTime=10000
    rocksdbCQDoubleWriteEnable=false rocksdbCompressionType=lz4 rocksdbFlushWalFrequency=1024
    rocksdbWalFileRollingThreshold=1073741824 sampleCountThreshold=5000 sampleSteps=32
    scheduleAsyncDeliverMaxPendingLimit=2000 scheduleAsyncDeliverMaxResendNum2Blocked=3
    searchBcqByCacheEnable=true sendMessageThreadPoolNums=2
    serverAsyncSemaphoreValue=64 serverCallbackExecutorThreads=0
    serverNettyWorkerGroupEnable=true serverOnewaySemaphoreValue=256
    serverPooledByteBufAllocatorEnable=true serverSelectorThreads=3 serverSocketBacklog=1024
    serverSocketRcvBufSize=0 serverSocketSndBufSize=0 serverWorkerThreads=8 sharedByteBufferNum=16
    shutdownWaitTimeSeconds=30
    socksProxyConfig={} spinLockCollisionRetreatOptimalDegree=1000
    startAcceptSendRequestTimeStamp=0 statRocksDBCQIntervalSec=10
    subscriptionExpiredTimeout=600000

    timerCheckMetricsWhen=05 timerColdDataCheckIntervalMs=60000 timerCongestNumEachSlot=2147483647
    timerEnableCheckMetrics=true timerEnableDisruptor=false timerEnableRetryUntilSuccess=false
    timerFlushIntervalMs=1000 timerGetMessageThreadNum=3 timerInterceptDelayLevel=false
    timerMetricSmallThreshold=1000000 timerProgressLogIntervalMs=10000
    timerPutMessageThreadNum=3 timerRecallToTimeWheelEnable=true timerRecallToTimelineEnable=true
    timerReputServiceCorePoolSize=6 timerReputServiceMaxPoolSize=6 timerReputServiceQueueCapacity=10000
    timerRocksDBEnable=false timerRocksDBPrecisionMs=1000 timerRocksDBRollIntervalHours=1
    timerRocksDBRollMaxTps=8000.0 timerRocksDBRollRangeHours=2 timerRocksDBStopScan=false
    timerRocksDBTimeExpiredMaxTps=200000.0 timerSkipUnknownError=false
    timerStopDequeue=false timerStopEnqueue=false timerWarmEnable=false
    timerWheelSnapshotFlush=false timerWheelSnapshotIntervalMs=10000 topicQueueLockNum=32
    transRocksDBEnable=false transWriteOriginTransHalfEnable=true transactionCheckRocksdbCoreThreads=2
    transactionCheckRocksdbMaxThreads=5 transactionCheckRocksdbQueueCapacity=2000
    transactionMetricFlushInterval=10000 transactionOpBatchInterval=3000 transactionOpMsgMaxSize=4096
    transferMsgByHeap=true transientStorePoolSize=5 travelCqFileNumWhenGetMessage=1
    updateNameServerAddrPeriod=120000 useABSLock=false useEpollNativeSelector=false
    useReentrantLockWhenPutMessage=true
    useSeparateRetryQueue=false useSeparateStorePathForRocksdbCQ=false
    useSingleRocksDBForAllConfigs=false useStaticSubscription=false
    validateSystemTopicWhenUpdateTopic=true waitTimeMillsInAckQueue=3000 waitTimeMillsInAdminBrokerQueue=5000
        wakeCommitWhenPutMessage=true
    wakeFlushWhenPutMessage=false warmMapedFileEnable=false writeBufferHighWaterMark=0 writeBufferLowWaterMark=0
    writeWithoutMmap=false
    """.split()
)

# Known to 5.5.0 without a value of their own, and keys of 4.x.
IGNORED_UNSET = frozenset(
    """preferredLeaderId dLegerGroup dLegerPeers dLegerSelfId storePathDLedgerCommitLog
    brokerConfigPath storePathConsumeQueue storePathIndex storeCheckpoint
    abortFile maxDelayTime""".split()
)

# Promises of safety that nothing here keeps: key -> the values that promise nothing.
UNKEPT_PROMISES: dict[str, frozenset[str]] = {
    "duplicationEnable": frozenset({"false"}),
    # The addresses of NameServers are looked up nowhere: namesrvAddr names them.
    "fetchNamesrvAddrByAddressServer": frozenset({"false"}),
    "fetchNameSrvAddrByDnsLookup": frozenset({"false"}),
    "rejectPullConsumerEnable": frozenset({"false"}),
    "readOnlyCommitLogStorePaths": frozenset({""}),
}
